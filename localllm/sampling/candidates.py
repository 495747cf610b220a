"""The tokens still in the running, with their logits; it knows no sampler."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from localllm.errors import SamplingError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

BLOCK = 64


class Candidates:
    """Parallel arrays `ids` (intp[n]) and `logits` (float32[n]); filters replace them by shorter ones, never by none.

    The vocabulary is large, so `ids` of None stands for 0..n-1 until the first filter has run.
    `is_sorted` claims falling logits, ties by rising id.
    """

    def __init__(self, logits: Floats, ids: Ids | None = None, is_sorted: bool = False) -> None:
        self.logits = logits
        self.ids = ids
        self.is_sorted = is_sorted

    def __len__(self) -> int:
        return len(self.logits)

    def token(self, index: int) -> int:
        return int(index if self.ids is None else self.ids[index])

    def keep(self, indices: Ids, is_sorted: bool) -> None:
        """Keep the candidates at `indices`, in that order."""
        self.ids = indices if self.ids is None else self.ids[indices]
        self.logits = self.logits[indices]
        self.is_sorted = is_sorted

    def keep_first(self, n: int) -> None:
        """Keep the first n of sorted candidates."""
        if n < len(self):
            self.ids = None if self.ids is None else self.ids[:n]
            self.logits = self.logits[:n]

    def sort(self) -> None:
        if not self.is_sorted:
            self.keep(top_indices(self.logits, len(self)), is_sorted=True)

    def probabilities(self) -> Floats:
        """Softmax of the logits: float32[n]."""
        weights = np.exp(self.logits - self.peak())
        return weights / np.float32(weights.sum(dtype=np.float64))

    def peak(self) -> np.float32:
        return self.logits[0] if self.is_sorted else self.logits.max()


def check_logits(logits: Floats) -> None:
    """Refuse what no distribution can be made of.

    Raises:
        SamplingError: a NaN or +inf among the logits, or nothing but -inf.
    """
    peak = logits.max()  # NaN wins over every number here
    if not np.isfinite(peak):
        problem = "NaN" if np.isnan(peak) else f"a maximum of {peak}"
        raise SamplingError(f"the model's logits hold {problem}; no token can be sampled from them")


def top_indices(values: Floats, k: int) -> Ids:
    """Positions (intp[min(k, n)]) of the k largest values, falling; of equal values the earlier one comes first."""
    k = min(k, len(values))
    indices = np.arange(len(values)) if k == len(values) else _top_unsorted(values, k)
    return indices[np.argsort(-values[indices], kind="stable")]


def _top_unsorted(values: Floats, k: int) -> Ids:
    """Positions, rising, of the k largest. The k-th largest maximum of a block bounds the k-th largest value from
    below, and one pass over memory finds it, where a partition of a large vocabulary costs milliseconds."""
    n_blocks = len(values) // BLOCK
    if k < n_blocks:
        maxima = values[: n_blocks * BLOCK].reshape(n_blocks, BLOCK).max(axis=1)
        indices = np.flatnonzero(values >= np.partition(maxima, n_blocks - k)[n_blocks - k])
    else:
        indices = np.arange(len(values))
    chosen = values[indices]
    kth = np.partition(chosen, len(chosen) - k)[len(chosen) - k]
    above = indices[chosen > kth]
    ties = indices[chosen == kth][: k - len(above)]
    return np.sort(np.concatenate([above, ties]))

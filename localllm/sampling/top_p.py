"""Top-p, nucleus sampling: keep the smallest set with probability p; it knows nothing of history."""

from __future__ import annotations

import numpy as np

from localllm.sampling.candidates import Candidates, top_indices

# How many of the best to sort before looking whether they suffice: a whole vocabulary takes tens of milliseconds.
SORT_STEPS = (256, 4096, 32768)


class TopP:
    """Keep the likeliest tokens up to and with the one that brings the sum to p (arXiv 1904.09751); p >= 1 is off."""

    def __init__(self, p: float, min_keep: int = 0) -> None:
        self._p = np.float32(p)
        self._min_keep = max(min_keep, 1)

    @property
    def is_active(self) -> bool:
        return bool(self._p < 1)

    def apply(self, candidates: Candidates) -> None:
        p = candidates.probabilities()
        if candidates.is_sorted:
            candidates.keep_first(self._count(p))
            return
        for k in (*SORT_STEPS, len(p)):
            order = top_indices(candidates.logits, k)
            n = self._count(p[order])
            if n <= len(order) or len(order) == len(p):
                break
        candidates.keep(order[:n], is_sorted=True)

    def _count(self, p: np.ndarray) -> int:
        """How many of the falling `p` to keep; more than there are if they do not suffice."""
        return max(int(np.searchsorted(np.cumsum(p), self._p, side="left")) + 1, self._min_keep)

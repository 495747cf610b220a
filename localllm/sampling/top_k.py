"""Top-k: keep the k best; it knows no probabilities."""

from __future__ import annotations

from localllm.sampling.candidates import Candidates, top_indices


class TopK:
    """Keep the k largest logits, sorted, and never fewer than `min_keep`; k <= 0 is off."""

    def __init__(self, k: int, min_keep: int = 0) -> None:
        self._k = max(k, min_keep) if k > 0 else 0

    @property
    def is_active(self) -> bool:
        return self._k > 0

    def apply(self, candidates: Candidates) -> None:
        if candidates.is_sorted:
            candidates.keep_first(self._k)
        else:
            candidates.keep(top_indices(candidates.logits, self._k), is_sorted=True)

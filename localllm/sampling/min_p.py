"""Min-p: drop what is unlikely relative to the best; it knows nothing of sums."""

from __future__ import annotations

import math

import numpy as np

from localllm.sampling.candidates import Candidates, top_indices


class MinP:
    """Keep p_i >= p * p_max, that is logit_i >= max + ln p (arXiv 2407.01082); p <= 0 is off, p > 1 keeps the best."""

    def __init__(self, p: float, min_keep: int = 0) -> None:
        self._p = p
        self._min_keep = max(min_keep, 1)

    @property
    def is_active(self) -> bool:
        return self._p > 0

    def apply(self, candidates: Candidates) -> None:
        bound = candidates.peak() + np.float32(math.log(self._p))
        kept = np.flatnonzero(candidates.logits >= bound)
        if len(kept) < self._min_keep:
            candidates.keep(top_indices(candidates.logits, self._min_keep), is_sorted=True)
        else:
            candidates.keep(kept, candidates.is_sorted)

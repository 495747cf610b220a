"""Locally typical sampling: keep tokens of about the expected surprise; it knows nothing of ranks."""

from __future__ import annotations

import numpy as np

from localllm.sampling.candidates import Candidates


class TypicalP:
    """Rank by abs(-ln p - H) and keep until the sum of p exceeds `p` (arXiv 2202.00666); p >= 1 is off."""

    def __init__(self, p: float, min_keep: int = 0) -> None:
        self._p = np.float32(p)
        self._min_keep = max(min_keep, 1)

    @property
    def is_active(self) -> bool:
        return bool(self._p < 1)

    def apply(self, candidates: Candidates) -> None:
        candidates.sort()
        p = candidates.probabilities()
        surprise = np.full(len(p), np.inf, np.float32)
        np.negative(np.log(p, where=p > 0, out=surprise), where=p > 0, out=surprise)
        entropy = np.sum(p[p > 0] * surprise[p > 0])
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        n = np.searchsorted(np.cumsum(p[order]), self._p, side="right") + 1
        candidates.keep(order[: max(n, self._min_keep)], is_sorted=False)

"""Top-n-sigma: drop what lies too far below the best logit; it knows no probabilities."""

from __future__ import annotations

import numpy as np

from localllm.sampling.candidates import Candidates


class TopNSigma:
    """Mask (to -inf) each logit < max - n * sigma, sigma over the finite logits (arXiv 2411.07641); n <= 0 is off."""

    def __init__(self, n: float) -> None:
        self._n = n

    @property
    def is_active(self) -> bool:
        return self._n > 0

    def apply(self, candidates: Candidates) -> None:
        if len(candidates) < 2:
            return
        logits = candidates.logits
        finite = logits[logits != -np.inf]
        bound = candidates.peak() - np.float32(self._n) * finite.std()
        candidates.logits = np.where(logits < bound, np.float32(-np.inf), logits)

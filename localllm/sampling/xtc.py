"""XTC, "exclude top choices": now and then drop all likely tokens but the least likely; it knows no history."""

from __future__ import annotations

import numpy as np

from localllm.sampling.candidates import Candidates
from localllm.sampling.rng import MersenneTwister


class Xtc:
    """With the given probability: of the tokens with p >= threshold keep only the least likely one.

    Off when probability <= 0, or threshold > 0.5 (two tokens cannot both reach it).
    """

    def __init__(self, probability: float, threshold: float, min_keep: int, seed: int) -> None:
        self._probability = np.float32(probability)
        self._threshold = np.float32(threshold)
        self._min_keep = min_keep
        self._rng = MersenneTwister(seed)

    @property
    def is_active(self) -> bool:
        return bool(self._probability > 0 and self._threshold <= 0.5)

    def skip(self) -> None:
        """What a token that leaves no choice does to the generator."""
        self._rng.uniform_float32()

    def apply(self, candidates: Candidates) -> None:
        if len(candidates) < 2 or self._rng.uniform_float32() > self._probability:
            return
        candidates.sort()
        n_top = int(np.count_nonzero(candidates.probabilities() >= self._threshold))
        n_left = len(candidates) - (n_top - 1)
        if n_top >= 2 and n_left >= self._min_keep:
            candidates.keep(np.arange(n_top - 1, len(candidates)), is_sorted=True)

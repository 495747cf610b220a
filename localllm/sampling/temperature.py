"""Temperature, fixed or driven by entropy (dynatemp); it knows nothing of history."""

from __future__ import annotations

import math

import numpy as np

from localllm.sampling.candidates import Candidates

# Below it float32 logits would overflow, and the draw is as good as greedy.
LOWEST = 1e-6


class Temperature:
    """logit /= T; T <= 0 keeps the best token alone and masks the others (-inf).

    With a range r > 0: T = lo + (hi - lo) * (H / ln n) ** exponent, lo = max(0, T - r), hi = T + r,
    H the entropy of the n candidates.
    """

    def __init__(self, temperature: float, dynamic_range: float = 0.0, exponent: float = 1.0) -> None:
        self._temperature = temperature
        self._range = dynamic_range
        self._exponent = exponent

    @property
    def is_greedy(self) -> bool:
        return self._temperature <= 0 and self._range <= 0

    def apply(self, candidates: Candidates) -> None:
        temperature = self._dynamic(candidates) if self._range > 0 else self._temperature
        if temperature > 0:
            candidates.logits = candidates.logits / np.float32(max(temperature, LOWEST))
        else:
            best = candidates.logits.argmax()
            candidates.logits = np.where(np.arange(len(candidates)) == best, candidates.logits, np.float32(-np.inf))
            candidates.is_sorted = candidates.is_sorted and bool(best == 0)

    def _dynamic(self, candidates: Candidates) -> float:
        lowest, highest = max(0.0, self._temperature - self._range), self._temperature + self._range
        if len(candidates) < 2:
            return highest
        p = candidates.probabilities()
        p = p[p > 0]
        share = max(0.0, float(-np.sum(p * np.log(p)))) / math.log(len(candidates))
        return lowest + (highest - lowest) * share**self._exponent

"""The draw that ends the chain; it knows nothing of how the candidates came about."""

from __future__ import annotations

import numpy as np

from localllm.sampling.candidates import Candidates
from localllm.sampling.rng import MersenneTwister


class Dist:
    """Draw by probability: the first candidate at which the cumulative weight reaches u * total.

    Exactly one number is drawn per token, even with a single candidate, so that the stream of later
    draws does not depend on how many candidates the filters left.
    """

    def __init__(self, seed: int) -> None:
        self._rng = MersenneTwister(seed)

    def select(self, candidates: Candidates) -> int:
        """The chosen token id."""
        return candidates.token(draw(np.exp(candidates.logits - candidates.peak()), self._rng.uniform()))

    def skip(self) -> None:
        """What selecting from a single candidate does to the generator."""
        self._rng.uniform()


def draw(weights: np.ndarray, u: float) -> int:
    """Position of the drawn weight; u in [0, 1). A weight of 0 is never drawn."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    target = max(u * cumulative[-1], np.nextafter(0.0, 1.0))
    return int(np.searchsorted(cumulative, target, side="left"))

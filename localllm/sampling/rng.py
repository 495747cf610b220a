"""The random numbers of the samplers: MT19937 with the C++ standard library's conversions; it knows no sampler."""

from __future__ import annotations

import secrets

import numpy as np

from localllm.sampling.params import RANDOM_SEED


class MersenneTwister:
    """`std::mt19937(seed)`: NumPy's `RandomState` seeds in the same way, and its stream is frozen for good.

    Each sampler owns one, so that a draw depends on the seed and on the sampler's earlier draws alone.
    """

    def __init__(self, seed: int) -> None:
        if seed < 0 or seed == RANDOM_SEED:
            seed = secrets.randbits(32)
        self._state = np.random.RandomState(seed & 0xFFFFFFFF)

    def uniform(self) -> float:
        """A double in [0, 1) from two words, the low one drawn first."""
        value = int.from_bytes(self._state.bytes(8), "little") / 2**64
        return min(value, float(np.nextafter(1.0, 0.0)))

    def uniform_float32(self) -> np.float32:
        """A float in [0, 1) from one word."""
        value = np.float32(int.from_bytes(self._state.bytes(4), "little")) / np.float32(2**32)
        return min(value, np.nextafter(np.float32(1), np.float32(0)))

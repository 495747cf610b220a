"""Mirostat 1 and 2: steer the surprise of the text towards tau (arXiv 2007.14966); they know no other filter."""

from __future__ import annotations

import math

import numpy as np

from localllm.sampling.candidates import Candidates, top_indices
from localllm.sampling.dist import draw
from localllm.sampling.rng import MersenneTwister

# Tokens from which version 1 estimates the exponent of the Zipf distribution.
N_ESTIMATE = 100


class Mirostat:
    """Version 2: keep tokens with surprise <= mu bits, draw, then mu -= eta * (surprise - tau); mu starts at 2 tau."""

    def __init__(self, tau: float, eta: float, seed: int) -> None:
        self._tau = tau
        self._eta = eta
        self.mu = 2 * tau
        self._rng = MersenneTwister(seed)

    def select(self, candidates: Candidates) -> int:
        """The chosen token id."""
        n = max(1, self._count(candidates.probabilities()))
        candidates.keep(top_indices(candidates.logits, n), is_sorted=True)
        p = candidates.probabilities()
        # a lone candidate takes no number from the stream: std::discrete_distribution does not either
        chosen = draw(p, self._rng.uniform()) if len(p) > 1 else 0
        self.mu -= self._eta * (-math.log2(p[chosen]) - self._tau)
        return candidates.token(chosen)

    def skip(self) -> None:
        """What selecting from a single candidate does to mu: it surprises nobody."""
        self.mu += self._eta * self._tau

    def _count(self, p: np.ndarray) -> int:
        """How many of the likeliest to keep, given the probabilities in any order."""
        return int(np.count_nonzero(p >= 2.0 ** min(-self.mu, 1000.0)))


class MirostatV1(Mirostat):
    """Version 1: estimate the Zipf exponent s from the top tokens and keep the k that meets mu."""

    def __init__(self, tau: float, eta: float, seed: int, n_vocab: int) -> None:
        super().__init__(tau, eta, seed)
        self._n_vocab = n_vocab

    def _count(self, p: np.ndarray) -> int:
        """k = (eps * 2^mu / (1 - n_vocab^-eps)) ^ (1/s), eps = s - 1: equations 29 and 30 of the paper."""
        top = p[top_indices(p, N_ESTIMATE)].astype(np.float64)
        top = top[top > 0]
        if len(top) < 2:
            return 1
        t = np.log(np.arange(2, len(top) + 1) / np.arange(1, len(top)))
        s = float(np.sum(t * np.log(top[:-1] / top[1:])) / np.sum(t * t))
        eps = s - 1
        if s <= 0 or eps == 0:
            return len(p)
        log_k = (
            math.log(abs(eps)) + self.mu * math.log(2) - math.log(abs(math.expm1(-eps * math.log(self._n_vocab))))
        ) / s
        return int(min(math.exp(min(log_k, 700.0)), len(p)))

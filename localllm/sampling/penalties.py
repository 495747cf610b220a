"""Repetition, frequency and presence penalties over a window of accepted tokens; it knows nothing of text."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from localllm.sampling.candidates import Floats


class Penalties:
    """For each token in the window: logit *= r if it is <= 0, else logit /= r; then logit -= count * f + p.

    The multiplication for negative logits departs from the paper (CTRL, arXiv 1909.05858), whose division
    would reward them. A negative `last_n` is a window without an end.
    """

    def __init__(self, last_n: int, repeat: float, frequency: float, presence: float) -> None:
        self._repeat = np.float32(repeat)
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)
        self._last_n = last_n
        self._window: deque[int] = deque()
        self._counts: Counter[int] = Counter()

    @property
    def is_active(self) -> bool:
        is_neutral = self._repeat == 1 and self._frequency == 0 and self._presence == 0
        return self._last_n != 0 and not is_neutral

    def accept(self, token: int) -> None:
        if not self.is_active:
            return
        self._window.append(token)
        self._counts[token] += 1
        if 0 < self._last_n < len(self._window):
            self._forget(self._window.popleft())

    def _forget(self, token: int) -> None:
        self._counts[token] -= 1
        if not self._counts[token]:
            del self._counts[token]

    def apply(self, logits: Floats) -> None:
        """Change float32[n_vocab] in place."""
        ids = np.fromiter(self._counts.keys(), np.intp, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        chosen = logits[ids]
        chosen = np.where(chosen <= 0, chosen * self._repeat, chosen / self._repeat)
        logits[ids] = chosen - (counts * self._frequency + self._presence)

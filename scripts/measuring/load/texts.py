"""Texts of a given number of tokens, from a seed; it does not know what they are for."""

from __future__ import annotations

import random
from collections.abc import Callable

from measuring.words import WORDS

CountTokens = Callable[[str], int]
TOLERANCE = 0.02


class Texts:
    """Texts of words by chance. `count_tokens` is the model's; the same calls on the same seed give the same texts."""

    def __init__(self, count_tokens: CountTokens, seed: int | str) -> None:
        self._count_tokens = count_tokens
        self._random = random.Random(seed)
        self._tokens_per_word = 1.0

    def of(self, n_tokens: int) -> str:
        """A text of about `n_tokens` tokens: the words that came next, as many as are within TOLERANCE of it."""
        rng = random.Random(self._random.random())
        words = [rng.choice(WORDS) for _ in range(n_tokens)]  # no word is less than a token
        n_words = max(1, round(n_tokens / self._tokens_per_word))
        for _ in range(8):
            text = " ".join(words[:n_words])
            n_found = self._count_tokens(text)
            self._tokens_per_word = n_found / n_words
            if abs(n_found - n_tokens) <= max(1, TOLERANCE * n_tokens):
                break
            n_words = min(len(words), max(1, round(n_tokens / self._tokens_per_word)))
        return text

    def between(self, low: int, high: int) -> int:
        """A number by chance, both ends included."""
        return self._random.randint(low, high)

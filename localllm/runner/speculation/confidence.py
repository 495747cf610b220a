"""How often tokens foretold from an earlier place have come, by how long the two texts had been alike; it knows no
tokens. What is foretold can be counted whether it is evaluated as a draft or not, so knowing costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

# Lengths of agreement from which on chances are counted apart.
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# What is believed beforehand counts like so many observations; of later ones the last so many count.
N_PRIOR = 4.0
N_REMEMBERED = 48.0
# A row costs more than a token that is less likely than this is worth.
MIN_CHANCE = 0.2
_CLASSES = [sum(first <= length for first in LENGTHS) - 1 for length in range(LENGTHS[-1] + 1)]


class Confidence:
    """`prior` are the chances for each of LENGTHS before anything was seen."""

    def __init__(self, prior: Sequence[float]) -> None:
        assert len(prior) == len(LENGTHS)
        self._n_seen = [N_PRIOR] * len(LENGTHS)
        self._n_right = [N_PRIOR * chance for chance in prior]

    def note(self, length: int, is_right: bool) -> None:
        """A token was foretold after an agreement of so many tokens, and came or did not."""
        i = _class(length)
        fade = min(1.0, N_REMEMBERED / (self._n_seen[i] + 1))
        self._n_seen[i] = (self._n_seen[i] + 1) * fade
        self._n_right[i] = (self._n_right[i] + is_right) * fade

    def chance(self, length: int) -> float:
        """That the next token comes as foretold."""
        i = _class(length)
        return self._n_right[i] / self._n_seen[i]

    def chances(self, length: int, n: int) -> list[float]:
        """That the first, the first two, … of the next tokens come as foretold: at most n, none below MIN_CHANCE."""
        result: list[float] = []
        product = self.chance(length)
        while product >= MIN_CHANCE and len(result) < n:
            result.append(product)
            product *= self.chance(length + len(result))
        return result


def _class(length: int) -> int:
    return _CLASSES[min(length, LENGTHS[-1])]

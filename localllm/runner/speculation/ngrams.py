"""Where runs of tokens occurred last in a growing text, in constant time a token; it knows nothing of drafts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import mul

import numpy as np

# How many tokens are looked up together, the longest run first.
SIZES = (8, 4, 2)
# No more tokens are compared than say something of how alike two places are.
MAX_MATCH = 32
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93) * 2
_MASK = (1 << 64) - 1
_FIRST_BITS = 10


class Ngrams:
    """`tokens` are all so far. For each size a table, int32 [2^bits], of the place after the last occurrence of what
    has a hash; 0 is none. What is found there is compared, so that a collision costs an occurrence and is no error."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = list(tokens)
        self._bits = _FIRST_BITS
        self._build()

    def add(self, token: int) -> None:
        """Append a token."""
        place = len(self.tokens)
        if 2 * place >= 1 << self._bits:
            self._build()
        for size, table in self._tables.items():
            if place >= size:
                table[self._hash(size)] = place
        self.tokens.append(token)

    def last(self) -> tuple[int, int]:
        """The place after the most recent earlier occurrence of the longest run that the tokens end with, and how many
        tokens before the two places are alike, at most MAX_MATCH; (0, 0) where not even the last two occurred."""
        for size, table in self._tables.items():
            if len(self.tokens) > size and (place := int(table[self._hash(size)])):
                n = self._n_alike(place)
                if n >= size:
                    return place, n
        return 0, 0

    def _n_alike(self, place: int) -> int:
        tokens, end = self.tokens, len(self.tokens)
        most = min(MAX_MATCH, place)
        n = 0
        while n < most and tokens[place - 1 - n] == tokens[end - 1 - n]:
            n += 1
        return n

    def _hash(self, size: int) -> int:
        """That of the last tokens."""
        total = sum(map(mul, self.tokens[-size:], _FACTORS))
        return (total & _MASK) >> (64 - self._bits)

    def _build(self) -> None:
        """Make tables with room for twice as many tokens, or more."""
        while 4 * len(self.tokens) >= 1 << self._bits:
            self._bits += 1
        self._tables = {size: np.zeros(1 << self._bits, np.int32) for size in SIZES}
        tokens = np.array(self.tokens, np.uint64)
        for size, table in self._tables.items():
            if (n := len(tokens) - size) > 0:
                factors = zip(range(size), _FACTORS, strict=False)
                hashes = sum((tokens[i : i + n] * np.uint64(f) for i, f in factors), np.zeros(n, np.uint64))
                # of equal indices the last assignment counts: the most recent place
                table[hashes >> np.uint64(64 - self._bits)] = np.arange(size, size + n, dtype=np.int32)


def continued(tokens: Sequence[int], place: int, n: int) -> list[int]:
    """The `n` tokens from a place on, which must lie within; where the text ends it goes on from that place again."""
    period = len(tokens) - place
    return [tokens[place + i % period] for i in range(n)]

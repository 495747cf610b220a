"""DRY, "don't repeat yourself": penalise what would prolong a repetition; it sees text only to place breakers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from localllm.sampling.candidates import Floats

# The first token of a breaker -> the tokens that must follow it, one list per way to spell the breaker.
Breakers = Mapping[int, Sequence[Sequence[int]]]

MAX_BREAKER_BYTES = 40
MAX_TAIL_TOKENS = 20
FLOAT32_MAX_LOG = 88.7228391


class Dry:
    """logit -= multiplier * base ** (n - allowed_length), n being the longest suffix of the history that the
    token would continue as it was continued before; breakers end suffixes. A negative `last_n` is the whole history.
    """

    def __init__(
        self, multiplier: float, base: float, allowed_length: int, last_n: int, breakers: Breakers | None = None
    ) -> None:
        self._multiplier = multiplier
        self._base = base
        self._allowed_length = allowed_length
        self._breakers = breakers or {}
        self._is_active = multiplier != 0 and base >= 1 and last_n != 0
        self._history: deque[int] = deque(maxlen=last_n if last_n > 0 else None)

    @property
    def is_active(self) -> bool:
        return self._is_active

    def accept(self, token: int) -> None:
        if self._is_active:
            self._history.append(token)

    def apply(self, logits: Floats) -> None:
        """Change float32[n_vocab] in place."""
        for token, length in self._repeat_lengths().items():
            if not any(len(tail) == 0 for tail in self._breakers.get(token, ())):
                logits[token] -= np.float32(self._penalty(length))

    def _repeat_lengths(self) -> dict[int, int]:
        """For each token that would prolong a repetition: the length of the longest such repetition."""
        newest_first = list(reversed(self._history))
        limit = self._repeat_limit(newest_first)
        lengths: dict[int, int] = {}
        if len(newest_first) <= self._allowed_length or limit < self._allowed_length:
            return lengths
        for position, length in enumerate(z_lengths(newest_first)):
            capped = min(length, limit)
            if position > 0 and capped >= self._allowed_length:
                follower = newest_first[position - 1]
                lengths[follower] = max(capped, lengths.get(follower, 0))
        return lengths

    def _repeat_limit(self, newest_first: list[int]) -> int:
        """How many tokens there are after the latest breaker."""
        for age, token in enumerate(newest_first):
            matches = [len(tail) for tail in self._breakers.get(token, ()) if _follows(newest_first, age, tail)]
            if matches:
                return age - max(matches)
        return len(newest_first)

    def _penalty(self, length: int) -> float:
        exponent = length - self._allowed_length
        if self._base > 1.000001:
            exponent = min(exponent, int(FLOAT32_MAX_LOG / math.log(self._base)))
        return self._multiplier * self._base**exponent


def _follows(newest_first: list[int], age: int, tail: Sequence[int]) -> bool:
    return len(tail) <= age and newest_first[age - len(tail) : age] == list(reversed(tail))


def z_lengths(sequence: Sequence[int]) -> list[int]:
    """The Z function: for each position, how much of the sequence's start is repeated there (0 at position 0)."""
    n = len(sequence)
    lengths = [0] * n
    left = right = 0  # the repeat [left, right) that reaches farthest
    for i in range(1, n):
        length = min(right - i, lengths[i - left]) if i < right else 0
        while i + length < n and sequence[length] == sequence[i + length]:
            length += 1
        lengths[i] = length
        if i + length > right:
            left, right = i, i + length
    return lengths


def find_breakers(
    texts: Iterable[str], pieces: Sequence[bytes], tokenize: Callable[[str], Sequence[int]]
) -> dict[int, list[list[int]]]:
    """Find the tokens with which each breaker text can begin, as `Breakers`.

    Args:
        texts: breaker strings; empty ones are skipped, long ones cut to 40 bytes.
        pieces: the bytes of every token, by id.
        tokenize: text to ids without special tokens, for the rest of a breaker that begins inside a token.
    """
    breakers: dict[int, list[list[int]]] = {}
    for text in texts:
        wanted = text.encode()[:MAX_BREAKER_BYTES]
        if not wanted:
            continue
        for token, piece in enumerate(pieces):
            tails = (
                [[]] if wanted in piece else [list(tokenize(rest))[:MAX_TAIL_TOKENS] for rest in _rests(piece, wanted)]
            )
            known = breakers.setdefault(token, []) if tails else []
            known.extend(tail for tail in tails if tail not in known)
    return breakers


def _rests(piece: bytes, wanted: bytes) -> list[str]:
    """What is left of `wanted` for each of its proper starts that `piece` ends with."""
    return [
        wanted[n:].decode(errors="ignore")
        for n in range(min(len(wanted) - 1, len(piece)), 0, -1)
        if piece.endswith(wanted[:n])
    ]

"""What holds for every place in the rest of an answer, found out once for all; it knows no way of writing calls.

A model may begin call after call and end none. Were each read to the end by itself, the time would grow with the
square of the answer's length.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

_MAX_ATTEMPTS = 8
_TOKEN = re.compile(r'[{}\[\]"\\]')

_Ends = tuple[int, Any] | None
"""Where the innermost object that is open ends, then the ones around it."""


class Tail:
    """Facts about a text, kept for all the texts that it ends with."""

    def __init__(self) -> None:
        self._text = ""
        self._facts: dict[Any, Any] = {}

    def fact(self, key: Any, text: str, find: Callable[[str], Any]) -> tuple[Any, int]:
        """What `find` says about the longest text that ends with this one, and how much longer that is."""
        if not self._text.endswith(text):
            self._text, self._facts = text, {}
        if key not in self._facts:
            self._facts[key] = find(self._text)
        return self._facts[key], len(self._text) - len(text)

    def find(self, text: str, needle: str, start: int) -> int:
        """`text.find(needle, start)`, without searching again what has been searched."""
        searched, n = self.fact(("find", needle), text, lambda _: [0, -2])
        first, found = searched
        if found == -2 or start + n < first or (0 <= found < start + n):
            found = text.find(needle, start)
            searched[:] = start + n, found + n if found >= 0 else -1
            return found
        return found - n if found >= 0 else -1

    def may_try(self, reader: object, text: str, end: int, openers: tuple[str, ...]) -> bool:
        """Whether a call from this text's beginning to `end` is worth its reading, which counts as an attempt.

        Of the calls that end in one place the first ones are, and the one that has no further opener inside.
        """
        attempts, n = self.fact(("attempts", reader), text, lambda _: {})
        attempts[end + n] = attempts.get(end + n, 0) + 1
        return attempts[end + n] <= _MAX_ATTEMPTS or all(text.find(opener, 1, end) < 0 for opener in openers)


def json_ends(text: str) -> dict[int, int]:
    """Where the object or list ends that begins at each brace and bracket, if it ends. Linear, from right to left."""
    ends: dict[int, int] = {}
    outside: _Ends = None
    inside: _Ends = None  # a string
    inside_next: _Ends = None  # the same, right of the next token
    at_next = -1
    for match in reversed(list(_TOKEN.finditer(text))):
        token, at = match[0], match.start()
        before = inside
        if token == '"':
            outside, inside = inside, outside
        elif token == "\\":
            inside = inside_next if at_next == at + 1 else inside
        elif token in "}]":
            outside = (at + 1, outside)
        elif outside is not None:
            ends[at], outside = outside
        inside_next, at_next = before, at
    return ends


def closer_after(text: str, quote: str, closers: tuple[str, ...]) -> Callable[[int], int | None]:
    """Finds the first of `closers` from some place on that is not between two texts `quote`."""
    outside: int | None = None
    inside: int | None = None
    places: list[tuple[int, int | None]] = []
    for match in reversed(list(re.finditer("|".join(map(re.escape, (quote, *closers))), text))):
        if match[0] == quote:
            outside, inside = inside, outside
        else:
            outside = match.start()
        places.append((match.start(), outside))
    places.reverse()
    starts = [start for start, _ in places]

    def after(at: int) -> int | None:
        i = bisect_left(starts, at)
        return places[i][1] if i < len(places) else None

    return after

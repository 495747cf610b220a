"""JSON as text: its punctuation with or without blanks, and the rules of any value; schemas it does not know."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Literal as Either
from typing import TypeAlias

import numpy as np

from localllm.grammar.dfa import DEAD, Dfa
from localllm.grammar.expressions import (
    EMPTY,
    Choice,
    Expression,
    Literal,
    Reference,
    Repeat,
    Terminal,
    optional,
    sequence,
)
from localllm.grammar.numbers import NUMBER
from localllm.grammar.regular import FREE_STRING

Whitespace: TypeAlias = Either["compact", "flexible"]

MAX_BLANKS = 20  # behind a line feed
ANY_VALUE, ANY_OBJECT, ANY_ARRAY = "any value", "any object", "any array"

NULL, TRUE, FALSE = Literal(b"null"), Literal(b"true"), Literal(b"false")


def _blanks(around: bytes = b"") -> Dfa:
    """One space, or a line feed and at most MAX_BLANKS spaces and tabs, or nothing; with `around`, a byte with such a
    run on either side of it."""
    n = MAX_BLANKS + 2  # states of a run: before it, behind the space, behind the line feed and each blank
    runs = 2 if around else 1
    classes = np.zeros(256, np.uint8)
    classes[ord("\n")], classes[ord("\t")], classes[ord(" ")] = 1, 2, 3
    classes[list(around)] = 4
    table = np.full((runs * (n + 1), 5), DEAD, np.int32)
    for first in range(0, runs * (n + 1), n + 1):
        start, space, line = first, first + 1, first + 2
        table[start, 1], table[start, 3] = line, space
        for blank in range(line, first + n):
            table[blank, 2:4] = blank + 1
    if around:
        table[: n + 1, 4] = n + 1
    accepting = np.zeros(len(table), np.bool_)
    accepting[-(n + 1) :] = True
    return Dfa(classes, table, accepting)


class Layout:
    """How the parts of arrays and objects follow one another.

    A list is `begin` and, unless it is empty, `blank` and items between commas, then the end, which holds the blanks
    before it. So no place has two runs of blanks, one behind the other.
    """

    def __init__(self, whitespace: Whitespace) -> None:
        is_compact = whitespace == "compact"
        around: Callable[[bytes], Expression] = Literal if is_compact else lambda byte: Terminal(_blanks(byte))
        self.blank: Expression = EMPTY if is_compact else Terminal(_blanks())
        self.comma, self.colon = around(b","), around(b":")
        self.begin_array, self.begin_object = Literal(b"["), Literal(b"{")
        self.end_array, self.end_object = (sequence(*self.spaced(Literal(byte))) for byte in (b"]", b"}"))

    def spaced(self, *items: Expression) -> tuple[Expression, ...]:
        """The items behind blanks."""
        return items if self.blank is EMPTY else (self.blank, *items)

    def listed(self, item: Expression, least: int = 0, most: int | None = None) -> Expression:
        """From `least` to `most` items between commas, behind blanks if there are any."""
        if most == 0:
            return EMPTY
        more = Repeat(sequence(self.comma, item), max(least - 1, 0), None if most is None else most - 1)
        filled = sequence(*self.spaced(item, more))
        return filled if least else optional(filled)

    def array(self, *items: Expression) -> Expression:
        """The brackets with what is between them."""
        return sequence(self.begin_array, *items, self.end_array)

    def object(self, *members: Expression) -> Expression:
        """The braces with what is between them."""
        return sequence(self.begin_object, *members, self.end_object)

    def member(self, key: Expression, value: Expression) -> Expression:
        """A key with its value."""
        if isinstance(key, Literal) and isinstance(self.colon, Literal):
            return sequence(Literal(key.data + self.colon.data), value)
        return sequence(key, self.colon, value)

    @functools.cached_property
    def any_rules(self) -> dict[str, Expression]:
        """The rules ANY_VALUE, ANY_OBJECT and ANY_ARRAY, of values nested as deeply as one likes."""
        string, value = Terminal(FREE_STRING), Reference(ANY_VALUE)
        return {
            ANY_VALUE: any_of([string, NUMBER, Reference(ANY_OBJECT), Reference(ANY_ARRAY), TRUE, FALSE, NULL]),
            ANY_OBJECT: self.object(self.listed(self.member(string, value))),
            ANY_ARRAY: self.array(self.listed(value)),
        }


@functools.cache
def layout_of(whitespace: Whitespace) -> Layout:
    """The layout of a policy: compact, no blanks at all; flexible, at most one run wherever JSON permits blanks
    within a value."""
    return Layout(whitespace)


def any_of(items: Iterable[Expression]) -> Expression:
    """A choice whose items that are choices themselves are spread out."""
    found: list[Expression] = []
    for item in items:
        found += item.items if isinstance(item, Choice) else (item,)
    return found[0] if len(found) == 1 else Choice(tuple(found))

"""What a regular expression is read into; neither its spelling nor automata are known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from localllm.grammar.regular.charsets import Charset


@dataclass(frozen=True)
class Set:
    """One letter of a charset."""

    charset: Charset


@dataclass(frozen=True)
class Cat:
    """One after another; of nothing it is the empty word."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Alt:
    """Any one of them."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Rep:
    """From `least` to `most` times; None is any number."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Anchor:
    """A place: "start" or "end" of the text, a "boundary" of words, or "inside", where none is."""

    kind: str


@dataclass(frozen=True)
class Look:
    """A place whose following text begins with a match of `item`, or, `is_behind`, whose preceding text ends with one;
    `negated`: does not. `position` is its place in the pattern."""

    item: Node
    negated: bool
    is_behind: bool
    position: int


Node: TypeAlias = Set | Cat | Alt | Rep | Anchor | Look

EMPTY = Cat(())

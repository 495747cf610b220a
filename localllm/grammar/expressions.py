"""What all ways of writing a constraint become: rules over bytes; it knows neither JSON nor tokens' texts.

A `Grammar` is a set of rules, each an expression. The language of a rule is a set of byte strings; a `TokenSet` in it
stands for one token of the vocabulary instead of bytes. Expressions are compared by identity: sharing one is cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from localllm.grammar.dfa import Dfa


@dataclass(frozen=True, eq=False)
class Literal:
    """These bytes."""

    data: bytes


@dataclass(frozen=True, eq=False)
class Terminal:
    """A word of a regular language."""

    dfa: Dfa


@dataclass(frozen=True, eq=False)
class Sequence:
    """One after another; of nothing it is the empty text."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Choice:
    """Any one of them; of nothing it matches nothing."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """From `least` to `most` of an item, one after another; without `most` any number. Large bounds cost nothing."""

    item: Expression
    least: int
    most: int | None


@dataclass(frozen=True, eq=False)
class Reference:
    """The rule of this name."""

    rule: str


@dataclass(frozen=True, eq=False)
class TokenSet:
    """One token of these ids, or, `negated`, one of all others."""

    ids: frozenset[int]
    negated: bool = False


Expression: TypeAlias = Literal | Terminal | Sequence | Choice | Repeat | Reference | TokenSet

EMPTY = Sequence(())
NEVER = Choice(())


@dataclass(frozen=True, eq=False)
class Grammar:
    """Rules by name, and the one to begin with."""

    rules: Mapping[str, Expression]
    root: str = "root"


def sequence(*items: Expression) -> Expression:
    """`Sequence`, without one where there is one item."""
    return items[0] if len(items) == 1 else Sequence(items)


def choice(items: Iterable[Expression]) -> Expression:
    """`Choice`, without one where there is one item."""
    found = tuple(items)
    return found[0] if len(found) == 1 else Choice(found)


def optional(item: Expression) -> Expression:
    """The item or nothing."""
    return Choice((item, EMPTY))

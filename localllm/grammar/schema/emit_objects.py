"""The text of objects: which members may follow which; of members' texts it knows only that they are expressions.

Members come in the order of the declared ones, then those of the families. In *any* order the members taken so far
are what is remembered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal as Either
from typing import TypeAlias

from localllm.grammar.errors import TooComplexError, UnsupportedSchemaError
from localllm.grammar.expressions import (
    EMPTY,
    NEVER,
    Expression,
    Literal,
    Repeat,
    choice,
    optional,
    sequence,
)
from localllm.grammar.json_text import Layout
from localllm.grammar.regular import Language
from localllm.grammar.schema.emit_strings import string_text

Order: TypeAlias = Either["declared", "any"]

MAX_FREE_ORDER = 8  # properties of an object whose order is free; what was taken are 2 ** 8 sets
MAX_SPELLED_KEYS = 32  # of a family; with more of them its keys are not told apart
MAX_STATES = 10_000  # of an object: members that may come next × members counted


@dataclass(frozen=True, eq=False)
class Members:
    """What an object may hold: `declared` members (is it required?), each at most once, and `extra` ones, any number,
    without a way to tell whether a key comes twice (None: there are none). `least` and `most` count both."""

    declared: list[tuple[Expression, bool]]
    extra: Expression | None
    least: int
    most: int | None
    path: str

    @property
    def n_required(self) -> int:
        return sum(is_required for _, is_required in self.declared)

    def missing(self, count: int) -> int:
        """How many extra members must be there if there are `count` declared ones.

        Raises:
            UnsupportedSchemaError: two of them or more.
        """
        needed = max(self.least - count, 0)
        if needed > 1 and self.extra is not None:
            raise UnsupportedSchemaError(
                f"minProperties {self.least} counts names that are not declared, which cannot be told apart",
                path=self.path,
                keyword="minProperties",
            )
        return needed


def key_text(name: str) -> Expression | None:
    """A name in its canonical spelling; None where it has no text in UTF-8."""
    try:
        text = json.dumps(name, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None
    return string_text(Language.of_strings([name])) if b"\\u" in text else Literal(text)


def spelled_keys(language: Language) -> list[str] | None:
    """The keys of a small family, or None."""
    return language.strings(MAX_SPELLED_KEYS)


def object_text(members: Members, layout: Layout, order: Order) -> Expression:
    """The objects with these members.

    Raises:
        UnsupportedSchemaError: a count or an order that cannot be enforced.
        TooComplexError: counts that need too many states.
    """
    n = len(members.declared)
    most = members.most
    if members.extra is None and most is not None and most >= n:
        most = None
    if most is not None and most < members.n_required:
        return NEVER
    found = Members(members.declared, members.extra, members.least, most, members.path)
    if n > 1 and order == "any":
        inner = _any_order(found, layout)
    elif most is None and members.least <= members.n_required and members.n_required:
        inner = _chain(found, layout)
    else:
        inner = _counted(found, layout)
    return inner if inner is NEVER else layout.object(inner)


def _extras(members: Members, layout: Layout, count: int) -> Expression:
    """What may follow behind `count` declared members."""
    needed = members.missing(count)
    room = None if members.most is None else members.most - count
    if members.extra is None:
        return NEVER if needed else EMPTY
    if needed and room == 0:
        return NEVER
    if not count:
        return layout.listed(members.extra, needed, room)
    return Repeat(sequence(layout.comma, members.extra), needed, room)


def _chain(members: Members, layout: Layout) -> Expression:
    """Without counts, where a member is required: those before the first required one bring the comma behind them."""
    parts: list[Expression] = []
    is_behind_required = False
    for member, is_required in members.declared:
        if is_behind_required:
            with_comma = sequence(layout.comma, member)
            parts.append(with_comma if is_required else optional(with_comma))
        elif is_required:
            parts.append(member)
            is_behind_required = True
        else:
            parts.append(optional(sequence(member, layout.comma)))
    if members.extra is not None:
        parts.append(Repeat(sequence(layout.comma, members.extra), 0, None))
    return sequence(*layout.spaced(*parts))


def _counted(members: Members, layout: Layout) -> Expression:
    """The members from the last to the first, for each number of members before them.

    Without `most` a number counts only as far as it may still decide something: up to `least`, and whether it is 0.
    """
    cap = max(members.least, 1) if members.most is None else members.most
    declared = members.declared
    if len(declared) * cap > MAX_STATES:
        raise TooComplexError(
            f"{members.path}: an object of {len(declared)} properties with counts up to {cap} needs more than "
            f"{MAX_STATES:,} states"
        )
    n_required = members.n_required
    after = {count: _extras(members, layout, count) for count in _counts(n_required, len(declared), cap)}
    for index in reversed(range(len(declared))):
        member, is_required = declared[index]
        n_required -= is_required
        behind: dict[int, Expression] = {}  # the member and what follows, by the count with it
        before: dict[int, Expression] = {}
        for count in _counts(n_required, index, cap):
            with_it = min(count + 1, cap) if members.most is None else count + 1
            ways = []
            follow = after.get(with_it, NEVER)
            if follow is not NEVER:
                taken = behind.setdefault(with_it, sequence(member, follow))
                ways.append(sequence(layout.comma, taken) if count else sequence(*layout.spaced(taken)))
            skipped = NEVER if is_required else after[count]
            if skipped is not NEVER:
                ways.append(skipped)
            before[count] = choice(ways) if ways else NEVER
        after = before
    return after[0]


def _counts(least: int, most: int, cap: int) -> Iterator[int]:
    """The numbers of members that there may be, of at least `least` and at most `most`, as far as they are counted."""
    return iter(range(min(least, cap), min(most, cap) + 1))


def _any_order(members: Members, layout: Layout) -> Expression:
    """Every order: an expression for each set of declared members taken, and for the number of extra ones; without
    `most` it only matters whether there is one."""
    n, extra, most = len(members.declared), members.extra, members.most
    if n > MAX_FREE_ORDER:
        raise UnsupportedSchemaError(
            f"{n} properties in any order (at most {MAX_FREE_ORDER})", path=members.path, keyword="properties"
        )
    cap = 0 if extra is None else 1 if most is None else most
    if cap << n > MAX_STATES:
        raise TooComplexError(f"{members.path}: {n} properties in any order and {cap} others need too many states")
    required = sum(1 << index for index, (_, is_required) in enumerate(members.declared) if is_required)
    tails: dict[tuple[int, int], Expression] = {}
    for taken in reversed(range(1 << n)):
        n_taken = bin(taken).count("1")
        is_enough = not required & ~taken
        for extras in reversed(range(cap + 1)):
            count = n_taken + extras
            ways: list[Expression] = [EMPTY] if is_enough and members.missing(n_taken) <= extras else []
            if most is None or count < most:
                follows: list[Expression] = [
                    sequence(member, follow)
                    for index, (member, _) in enumerate(members.declared)
                    if not taken >> index & 1 and (follow := tails[taken | 1 << index, extras]) is not NEVER
                ]
                if extra is not None and extras < cap and (follow := tails[taken, extras + 1]) is not NEVER:
                    follows.append(sequence(extra, follow))
                ways += [sequence(layout.comma, way) if count else sequence(*layout.spaced(way)) for way in follows]
            tail = choice(ways) if ways else NEVER
            if extra is not None and most is None and extras and ways:
                tail = sequence(Repeat(sequence(layout.comma, extra), 0, None), tail)
            tails[taken, extras] = tail
    return tails[0, 0]

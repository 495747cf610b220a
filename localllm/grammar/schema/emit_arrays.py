"""The text of arrays: which items may follow which; of items' texts it knows only that they are expressions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from localllm.grammar.errors import TooComplexError, UnsupportedSchemaError
from localllm.grammar.expressions import EMPTY, NEVER, Expression, Repeat, choice, optional, sequence
from localllm.grammar.json_text import Layout

MAX_STATES = 10_000  # of an array: places × items counted
MAX_UNIQUE_SETS = 1024  # sets of values that an array of unique items may have had so far


@dataclass(frozen=True, eq=False)
class Items:
    """`prefix` are the texts of the first items, `rest` that of later ones (NEVER: there are none)."""

    prefix: Sequence[Expression]
    rest: Expression
    least: int
    most: int | None

    def at(self, place: int) -> Expression:
        return self.prefix[place] if place < len(self.prefix) else self.rest


def bounded(items: Items) -> Items:
    """The same with an end: behind the first place that nothing fits there is none."""
    most = items.most
    prefix = items.prefix
    for place, item in enumerate(prefix):
        if item is NEVER:
            prefix, most = prefix[:place], place if most is None else min(most, place)
            break
    else:
        if items.rest is NEVER:
            most = len(prefix) if most is None else min(most, len(prefix))
    if most is not None:
        prefix = prefix[:most]
    return Items(prefix, items.rest, items.least, most)


def array_text(items: Items, layout: Layout) -> Expression:
    """The arrays of these items, as they are counted."""
    items = bounded(items)
    if items.most is not None and items.least > items.most:
        return NEVER
    return layout.array(_listed(items, layout))


def _listed(items: Items, layout: Layout) -> Expression:
    n = len(items.prefix)
    room = None if items.most is None else items.most - n
    if not n:
        return layout.listed(items.rest, items.least, room)
    parts: list[Expression] = []  # from the last place that may be left out on, what follows it; flat where none may
    if room != 0:
        parts = [Repeat(sequence(layout.comma, items.rest), max(items.least - n, 0), room)]
    for place in reversed(range(n)):
        item = items.prefix[place]
        parts = [item, *parts] if not place else [layout.comma, item, *parts]
        if place >= items.least:
            parts = [optional(sequence(*(parts if place else layout.spaced(*parts))))]
    return parts[0] if items.least <= 0 else sequence(*layout.spaced(*parts))


@dataclass(frozen=True, eq=False)
class Counted:
    """What `contains` asks for: `matching` are the items, place by place, that are of its shape and count, and from
    `least` to `most` of them must be there. `other` are the items that do not count; without `most` simply all items.
    """

    matching: Items
    other: Items
    least: int
    most: int | None


def containing_text(counted: Counted, layout: Layout, path: str) -> Expression:
    """The arrays of items so many of which match: an expression for each place and each number of matching items
    before it. Places count as far as they differ: behind the prefix only as far as the length decides something.

    Raises:
        TooComplexError: too many places and numbers.
    """
    length = counted.matching
    n_places = max(len(length.prefix), length.least, 1) if length.most is None else length.most
    cap = counted.least if counted.most is None else counted.most
    if (n_places + 1) * (cap + 1) > MAX_STATES:
        raise TooComplexError(f"{path}: an array of {n_places} items, {cap} of them counted, needs too many states")
    after: dict[int, Expression] = {}  # by the number of matching items
    for place in reversed(range(n_places + 1)):
        is_loop = place == n_places and length.most is None
        before: dict[int, Expression] = {}
        for count in reversed(range((cap if is_loop else min(place, cap)) + 1)):
            is_enough = place >= length.least and count >= counted.least
            ways: list[Expression] = [EMPTY] if is_enough else []
            follows = before if is_loop else after
            with_it = min(count + 1, cap) if counted.most is None else count + 1
            for items, behind in ((counted.matching, with_it), (counted.other, count)):
                item, follow = items.at(place), follows.get(behind, NEVER)
                if item is not NEVER and follow is not NEVER:
                    taken = sequence(item, follow)
                    ways.append(sequence(layout.comma, taken) if place else sequence(*layout.spaced(taken)))
            before[count] = choice(ways) if ways else NEVER
            if is_loop and ways:
                others = Repeat(sequence(layout.comma, counted.other.at(place)), 0, None)
                before[count] = sequence(others, before[count])
        after = before
    inner = after.get(0, NEVER)
    return inner if inner is NEVER else layout.array(inner)


def unique_text(
    values: Callable[[int], dict[Hashable, Expression] | None], items: Items, layout: Layout, path: str
) -> Expression:
    """The arrays of items no two of which are equal: an expression for each set of values that were there already.

    values: the text of each value that a place may have, by what tells it apart; None where they are too many.

    Raises:
        UnsupportedSchemaError: too many values.
    """
    items = bounded(items)
    if items.most is not None and items.least > items.most:
        return NEVER
    tails: dict[frozenset[Hashable], Expression] = {}
    waiting: list[frozenset[Hashable]] = [frozenset()]
    while waiting:
        used = waiting[-1]
        place = len(used)
        free = _values_at(values, items, place, path) if place != items.most else {}
        unknown = [used | {key} for key in free if key not in used and used | {key} not in tails]
        if unknown:
            waiting += unknown
            if len(tails) + len(waiting) > MAX_UNIQUE_SETS:
                raise _too_many_values(path)
            continue
        waiting.pop()
        ways: list[Expression] = [EMPTY] if place >= items.least else []
        for key, text in free.items():
            if key not in used and (follow := tails[used | {key}]) is not NEVER:
                taken = sequence(text, follow)
                ways.append(sequence(layout.comma, taken) if place else sequence(*layout.spaced(taken)))
        tails[used] = choice(ways) if ways else NEVER
    inner = tails[frozenset()]
    return inner if inner is NEVER else layout.array(inner)


def _values_at(
    values: Callable[[int], dict[Hashable, Expression] | None], items: Items, place: int, path: str
) -> dict[Hashable, Expression]:
    if items.at(place) is NEVER:
        return {}
    found = values(place)
    if found is None:
        raise _too_many_values(path)
    return found


def _too_many_values(path: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError("items whose values cannot all be told apart", path=path, keyword="uniqueItems")

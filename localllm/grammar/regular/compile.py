"""Makes automata of the trees of regular expressions: states are sets of places, kept as the bits of an integer.

Whether a place is the text's start is known when its set is made, so that `^` is followed in the first set alone; what
`$` leads to is followed only to see whether a set accepts. Other assertions are `assertions.py`'s.
"""

from __future__ import annotations

from localllm.grammar.errors import TooComplexError
from localllm.grammar.regular import automaton, charsets
from localllm.grammar.regular.assertions import determine_asserting
from localllm.grammar.regular.automaton import Automaton
from localllm.grammar.regular.positions import END, Positions
from localllm.grammar.regular.syntax import Cat, Node, Rep, Set

# How many places all sets of an automaton may hold together: what bounds the time.
MAX_WORK = 1_000_000

_ANY = Rep(Set(charsets.EVERYTHING), 0, None)


def compile_tree(node: Node, *, is_search: bool) -> Automaton:
    """The words that a pattern matches as a whole, or, searched, those that hold a match.

    Raises: PatternError, TooComplexError.
    """
    places = Positions(Cat((_ANY, node, _ANY)) if is_search else node)
    asked = {condition for steps in places.free for condition, _ in steps}
    return _determine(places) if asked <= {"", "start", "end"} else determine_asserting(places)


def _closure(places: Positions, place: int, conditions: frozenset[str]) -> int:
    """Bits of the places with letter steps, and bit 0 of the end, that free steps of these conditions reach."""
    seen, todo, found = {place}, [place], 0
    while todo:
        at = todo.pop()
        if at == END or at in places.letters:
            found |= 1 << at
        for condition, target in places.free[at]:
            if condition in conditions and target not in seen:
                seen.add(target)
                todo.append(target)
    return found


def _set_at(places: Positions, place: int, *, is_start: bool) -> int:
    """The closure of a place within the text, with bit 0 where the text may end."""
    here = frozenset(("", "start")) if is_start else frozenset(("",))
    return _closure(places, place, here) & ~1 | _closure(places, place, here | {"end"}) & 1


def _determine(places: Positions) -> Automaton:
    kinds = sorted({charset for charset, _ in places.letters.values()})
    starts, classes, members = charsets.partition(kinds)
    numbers = {charset: j for j, charset in enumerate(kinds)}
    of_kind = [0] * len(kinds)
    after: dict[int, int] = {}
    known: dict[int, int] = {}
    full = 0
    for place, (charset, target) in places.letters.items():
        of_kind[numbers[charset]] |= 1 << place
        if target not in known:
            known[target] = _set_at(places, target, is_start=False)
        after[place] = known[target]
        if charset == charsets.EVERYTHING and after[place] & 1 and after[place] >> place & 1:
            full |= 1 << place  # from here on every text is accepted
    columns = [[j for j in range(len(kinds)) if member >> j & 1] for member in members]
    work = 0

    def step(state: int) -> list[int | None]:
        nonlocal work
        if state & full:
            return [_whole(state & full)] * len(columns)
        reached = []
        for bits in of_kind:
            bits &= state
            found = 0
            while bits:
                low = bits & -bits
                found |= after[low.bit_length() - 1]
                bits ^= low
                work += 1
            reached.append(found)
        if work > MAX_WORK:
            raise TooComplexError(f"a pattern takes more than {MAX_WORK} steps to compile")
        row: list[int | None] = []
        for column in columns:
            target = 0
            for j in column:
                target |= reached[j]
            row.append(_whole(target & full) if target & full else target or None)
        return row

    first = _set_at(places, places.start, is_start=True)
    return automaton.build(starts, classes, *automaton.explore(first, step, lambda state: bool(state & 1)))


def _whole(full: int) -> int:
    """The one set that stands for all with a place from which every text is accepted."""
    return (full & -full) | 1

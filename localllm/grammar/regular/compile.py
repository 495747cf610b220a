"""Makes automata of the trees of regular expressions: states are sets of places, kept as the bits of an integer.

Whether a place is the text's start is known when its set is made, so that `^` is followed in the first set alone; what
`$` leads to is followed only to see whether a set accepts. Other assertions are `assertions.py`'s.
"""

from __future__ import annotations

from localllm.grammar.errors import TooComplexError
from localllm.grammar.regular import automaton, charsets
from localllm.grammar.regular.assertions import determine_asserting
from localllm.grammar.regular.automaton import Automaton
from localllm.grammar.regular.charsets import Charset
from localllm.grammar.regular.positions import END, Positions
from localllm.grammar.regular.simplify import searched
from localllm.grammar.regular.syntax import Node

# How many places all sets of an automaton may hold together: what bounds the time.
MAX_WORK = 600_000


def compile_tree(node: Node, *, is_search: bool) -> Automaton:
    """The words that a pattern matches as a whole, or, searched, those that hold a match.

    Raises: PatternError, TooComplexError.
    """
    places = Positions(searched(node) if is_search else node)
    asked = {condition for steps in places.free for condition, _ in steps}
    return _determine(places) if asked <= {"", "start", "end"} else determine_asserting(places)


def _determine(places: Positions) -> Automaton:
    kinds = sorted({charset for charset, _ in places.letters.values()})
    starts, classes, members = charsets.partition(kinds)
    classes_of: dict[Charset, list[int]] = {kind: [] for kind in kinds}
    for c, member in enumerate(members):
        for j in member:
            classes_of[kinds[j]].append(c)
    # A set is an integer: bit 0 says that the text may end there, the others are places with letter steps.
    bits = {place: bit for bit, place in enumerate(places.letters, start=1)}
    sets = _Sets(places, bits)
    kind_of = [charsets.NOTHING, *(charset for charset, _ in places.letters.values())]
    after = [0, *(sets.at(target) for _, target in places.letters.values())]
    full = always = 0
    for bit, kind in enumerate(kind_of):
        if kind == charsets.EVERYTHING and after[bit] >> bit & 1:
            if after[bit] & 1:
                full |= 1 << bit  # from here on every text is accepted
            else:
                always = always or after[bit] & ~1  # what any letter leads to again: the beginning of a search
    work = 0
    cost = 1 + len(places.letters) // 4096

    def row_of(state: int) -> list[int]:
        nonlocal work
        reached: dict[Charset, int] = {}
        while state:
            low = state & -state
            bit = low.bit_length() - 1
            reached[kind_of[bit]] = reached.get(kind_of[bit], 0) | after[bit]
            state ^= low
            work += cost
        row = [0] * len(members)
        for kind, found in reached.items():
            work += len(classes_of[kind]) // 4
            for c in classes_of[kind]:
                row[c] |= found
        _check(work)
        return row

    row_of_always = row_of(always)

    def step(state: int) -> list[int | None]:
        if state & full:
            row = row_of(state & full)
        elif always and state & always == always:
            row = [a | b for a, b in zip(row_of(state & ~always & ~1), row_of_always, strict=True)]
        else:
            row = row_of(state & ~1)
        return [_whole(target & full) if target & full else target or None for target in row]

    first = sets.at(places.start, is_start=True)
    # The hash of a large integer depends on its bits by their places modulo 61 only, which are too few for large sets.
    n_bytes = len(places.letters) // 8 + 1
    tables = automaton.explore(
        first, step, lambda state: bool(state & 1), lambda state: state.to_bytes(n_bytes, "little")
    )
    return automaton.build(starts, classes, *tables)


def _whole(full: int) -> int:
    """The one set that stands for all with a place from which every text is accepted."""
    return (full & -full) | 1


def _check(work: int) -> None:
    if work > MAX_WORK:
        raise TooComplexError(f"a pattern takes more than {MAX_WORK} steps to compile")


class _Sets:
    """What free steps reach from a place, as sets."""

    def __init__(self, places: Positions, bits: dict[int, int]) -> None:
        self._places = places
        self._bits = bits
        self._known: dict[tuple[int, bool], int] = {}
        self._work = 0

    def at(self, place: int, *, is_start: bool = False) -> int:
        """The set of a place within the text or at its start."""
        key = (place, is_start)
        if key not in self._known:
            here = {"", "start"} if is_start else {""}
            self._known[key] = self._closure(place, here) & ~1 | self._closure(place, here | {"end"}) & 1
        return self._known[key]

    def _closure(self, place: int, conditions: set[str]) -> int:
        seen, todo, found = {place}, [place], 0
        while todo:
            at = todo.pop()
            found |= 1 << self._bits[at] if at in self._bits else at == END
            for condition, target in self._places.free[at]:
                if condition in conditions and target not in seen:
                    seen.add(target)
                    todo.append(target)
        self._work += len(seen)
        _check(self._work)
        return found

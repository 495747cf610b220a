"""Makes automata of the trees of regular expressions: positions first, then sets of them.

Anchors are steps without a letter that only some places permit. Whether a place is the start is known when its set is
made, so that `^` is followed in the first set alone; what `$` leads to is followed only to see whether a set accepts.
"""

from __future__ import annotations

import numpy as np

from localllm.grammar.dfa import DEAD
from localllm.grammar.errors import PatternError, TooComplexError
from localllm.grammar.regular import automaton, charsets
from localllm.grammar.regular.automaton import Automaton
from localllm.grammar.regular.charsets import Charset
from localllm.grammar.regular.syntax import Alt, Anchor, Cat, Look, Node, Rep, Set

MAX_POSITIONS = 20_000
# How many positions all sets of an automaton may hold together: what bounds the time.
MAX_WORK = 3_000_000

_ANY = Rep(Set(charsets.EVERYTHING), 0, None)


def compile_tree(node: Node, *, is_search: bool) -> Automaton:
    """The words that a pattern matches as a whole, or, searched, those that hold a match.

    Raises: PatternError, TooComplexError.
    """
    return _Nfa(Cat((_ANY, node, _ANY)) if is_search else node).determine()


class _Nfa:
    """Positions of a tree. Each has a charset and a place that follows it; a place is a set of free steps."""

    def __init__(self, node: Node) -> None:
        # Free steps from each place: (condition, place). Place 0 is the end.
        self.free: list[list[tuple[str, int]]] = [[]]
        # The letter step of a place: its charset and the place after it.
        self.letters: dict[int, tuple[Charset, int]] = {}
        self.start = self.add(node, 0)

    def place(self, *steps: tuple[str, int]) -> int:
        if len(self.free) >= MAX_POSITIONS * 2:
            raise TooComplexError(f"a pattern needs more than {MAX_POSITIONS} positions")
        self.free.append(list(steps))
        return len(self.free) - 1

    def add(self, node: Node, after: int) -> int:
        """The place where a node begins that is followed by a place."""
        if isinstance(node, Set):
            place = self.place()
            self.letters[place] = (node.charset, after)
            return place
        if isinstance(node, Cat):
            for item in reversed(node.items):
                after = self.add(item, after)
            return after
        if isinstance(node, Alt):
            return self.place(*(("", self.add(item, after)) for item in node.items))
        if isinstance(node, Rep):
            return self.add_repeat(node, after)
        if isinstance(node, Anchor):
            if node.kind not in ("start", "end"):
                raise PatternError("word boundaries are not supported")
            return self.place((node.kind, after))
        assert isinstance(node, Look)
        raise PatternError("look-ahead is not supported", position=node.position)

    def add_repeat(self, node: Rep, after: int) -> int:
        if node.most is None:
            loop = self.place(("", after))
            self.free[loop].append(("", self.add(node.item, loop)))
            after = loop
        else:
            end = after
            for _ in range(node.most - node.least):
                after = self.place(("", end), ("", self.add(node.item, after)))
        for _ in range(node.least):
            after = self.add(node.item, after)
        return after

    def closure(self, place: int, conditions: frozenset[str]) -> int:
        """Bits of the places with letter steps, and bit 0 of the end, that free steps of these conditions reach."""
        seen, todo, found = {place}, [place], 0
        while todo:
            at = todo.pop()
            if at == 0 or at in self.letters:
                found |= 1 << at
            for condition, target in self.free[at]:
                if condition in conditions and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return found

    def places_after(self, place: int, at_start: bool) -> int:
        """The closure of a place within the text, with bit 0 where the text may end."""
        here = frozenset(("", "start")) if at_start else frozenset(("",))
        return self.closure(place, here) & ~1 | self.closure(place, here | {"end"}) & 1

    def determine(self) -> Automaton:
        kinds = sorted({charset for charset, _ in self.letters.values()})
        starts, classes, members = charsets.partition(kinds)
        numbers = {charset: j for j, charset in enumerate(kinds)}
        of_kind = [0] * len(kinds)
        after: dict[int, int] = {}
        known: dict[int, int] = {}
        full = 0
        for place, (charset, target) in self.letters.items():
            of_kind[numbers[charset]] |= 1 << place
            if target not in known:
                known[target] = self.places_after(target, at_start=False)
            after[place] = known[target]
            if charset == charsets.EVERYTHING and after[place] & 1 and after[place] >> place & 1:
                full |= 1 << place  # from here on every text is accepted
        columns = [[j for j in range(len(kinds)) if member >> j & 1] for member in members]
        work = 0

        def step(state: int) -> list[int | None]:
            nonlocal work
            if state & full:
                kept = state & full
                return [(kept & -kept) | 1] * len(columns)
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
                kept = target & full
                row.append((kept & -kept) | 1 if kept else target or None)
            return row

        first = self.places_after(self.start, at_start=True)
        rows, accepting = automaton.explore(first, step, lambda state: bool(state & 1))
        if not len(rows):
            rows = np.full((1, len(members)), DEAD, dtype=np.int32)
        return automaton.build(starts, classes, rows, accepting)

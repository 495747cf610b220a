"""Deterministic automata over letters, minimal and numbered canonically; what they were made of they do not know."""

from __future__ import annotations

import bisect
import functools
import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from localllm.grammar.dfa import DEAD
from localllm.grammar.errors import TooComplexError
from localllm.grammar.regular import charsets
from localllm.grammar.regular.charsets import Charset

MAX_STATES = 20_000
# States times classes.
MAX_CELLS = 1_500_000

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Automaton:
    """A regular language. State 0 is the start; equal languages have equal tables.

    starts: the first letter of each interval; the first one is 0, the last interval goes to the alphabet's end, and
    neighbours differ in class.
    classes: the class of each interval, numbered as they first occur.
    rows: by state and class the state that follows, DEAD where no word goes on.
    accepting: by state.

    It is trimmed as a `Dfa` is; the empty language has one state.
    """

    starts: list[int]
    classes: list[int]
    rows: list[list[int]]
    accepting: list[bool]

    @property
    def n_states(self) -> int:
        return len(self.accepting)

    @property
    def n_classes(self) -> int:
        return len(self.rows[0])

    @functools.cached_property
    def next(self) -> npt.NDArray[np.int32]:
        """`rows` as int32 [n_states, n_classes]."""
        return np.array(self.rows, dtype=np.int32)

    @functools.cached_property
    def key(self) -> bytes:
        """Equal for equal languages and for no others: 16 bytes."""
        digest = hashlib.blake2b(digest_size=16)
        for table in (self.starts, self.classes, self.next, self.accepting):
            digest.update(np.array(table, dtype=np.int32).tobytes() + b"|")
        return digest.digest()

    @functools.cached_property
    def charsets(self) -> list[Charset]:
        """The letters of each class."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.n_classes)]
        for first, last, c in self.intervals():
            found[c].append((first, last))
        return [tuple(intervals) for intervals in found]

    def intervals(self) -> Iterator[tuple[int, int, int]]:
        """(first letter, last letter, class) of each interval."""
        ends = [start - 1 for start in self.starts[1:]]
        return zip(self.starts, [*ends, charsets.LAST_LETTER], self.classes, strict=True)

    @property
    def is_empty(self) -> bool:
        return self.n_states == 1 and not self.accepting[0]

    def class_of(self, letter: int) -> int:
        return self.classes[bisect.bisect_right(self.starts, letter) - 1]

    def contains(self, text: str) -> bool:
        state = 0
        for character in text:
            code = ord(character)
            if charsets.FIRST_SURROGATE <= code <= charsets.LAST_SURROGATE:
                return False
            state = self.rows[state][self.class_of(charsets.letter(code))]
            if state == DEAD:
                return False
        return self.accepting[state]


def build(starts: list[int], classes: list[int], rows: list[list[int]], accepting: list[bool]) -> Automaton:
    """The minimal automaton of any tables of this kind: states that nothing reaches, that reach nothing or that are
    equal are allowed in them, and so are classes that behave alike.
    """
    return _numbered(starts, classes, rows, accepting, _blocks(rows, accepting))


def _numbered(
    starts: list[int], classes: list[int], rows: list[list[int]], accepting: list[bool], blocks: list[int]
) -> Automaton:
    """The automaton with one state for each block, numbered as words reach them first, and one class for those that
    behave alike."""
    if blocks[0] == DEAD:
        return Automaton([0], [0], [[DEAD]], [False])
    chosen, numbers = [0], {blocks[0]: 0, DEAD: DEAD}
    table = []
    for state in chosen:
        row = []
        for target in rows[state]:
            block = blocks[target]
            number = numbers.get(block)
            if number is None:
                number = numbers[block] = len(chosen)
                chosen.append(target)
            row.append(number)
        table.append(row)
    return Automaton(*_merged_classes(starts, classes, table), [accepting[state] for state in chosen])


def _blocks(rows: list[list[int]], accepting: list[bool]) -> list[int]:
    """Equal numbers for states that accept the same words, DEAD for those that accept none, and DEAD at the end, where
    index DEAD finds it.

    States are told apart by their shortest and longest words first, and then by the blocks that follow. Of a block that
    falls apart the largest part keeps its number, and only what precedes the others is looked at again.
    """
    before = _predecessors(rows)
    shortest = _shortest(before, accepting)
    live = [s for s, length in enumerate(shortest) if length != DEAD]
    longest = _longest(rows, before, shortest)
    blocks = [DEAD] * (len(rows) + 1)
    numbers: dict[tuple[int, int], int] = {}
    members: list[set[int]] = []
    for s in live:
        blocks[s] = numbers.setdefault((shortest[s], longest[s]), len(numbers))
        if blocks[s] == len(members):
            members.append(set())
        members[blocks[s]].add(s)
    doubtful = set(live)
    while doubtful:
        doubtful = {
            s for moved in _split(rows, blocks, members, doubtful) for s in before[moved] if shortest[s] != DEAD
        }
    return blocks


def _split(rows: list[list[int]], blocks: list[int], members: list[set[int]], doubtful: set[int]) -> list[int]:
    """Split the blocks with doubtful states by what follows these; all other states of a block have the same blocks
    after them. The states that are in another block now."""
    by_block: dict[int, list[int]] = {}
    for s in doubtful:
        by_block.setdefault(blocks[s], []).append(s)
    parts: list[list[int]] = []
    block_of = blocks.__getitem__
    for block, asked in by_block.items():
        everyone = members[block]
        if len(everyone) == 1:
            continue
        groups: dict[tuple[int, ...], list[int]] = {}
        for s in asked:
            groups.setdefault(tuple(map(block_of, rows[s])), []).append(s)
        others = everyone.difference(asked) if len(asked) < len(everyone) else ()
        if others:
            groups.setdefault(tuple(map(block_of, rows[next(iter(others))])), []).extend(others)
        if len(groups) > 1:
            parts += sorted(groups.values(), key=len)[:-1]
    moved = []
    for part in parts:
        members[blocks[part[0]]].difference_update(part)
        for s in part:
            blocks[s] = len(members)
        members.append(set(part))
        moved += part
    return moved


def _predecessors(rows: list[list[int]]) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for target in set(row):
            if target != DEAD:
                before[target].append(state)
    return before


def _shortest(before: list[list[int]], accepting: list[bool]) -> list[int]:
    """The length of each state's shortest word; DEAD where it has none."""
    lengths = [0 if accepts else DEAD for accepts in accepting]
    queue = [s for s, accepts in enumerate(accepting) if accepts]
    for state in queue:
        for other in before[state]:
            if lengths[other] == DEAD:
                lengths[other] = lengths[state] + 1
                queue.append(other)
    return lengths


def _longest(rows: list[list[int]], before: list[list[int]], shortest: list[int]) -> list[int]:
    """The length of each state's longest word; DEAD where it has none or there is no longest."""
    n_after = [len({t for t in row if t != DEAD and shortest[t] != DEAD}) for row in rows]
    lengths = [DEAD] * len(rows)
    queue = [s for s, n in enumerate(n_after) if n == 0 and shortest[s] != DEAD]
    for state in queue:
        lengths[state] = max(lengths[state], 0)
        for other in before[state]:
            lengths[other] = max(lengths[other], lengths[state] + 1)
            n_after[other] -= 1
            if n_after[other] == 0:
                queue.append(other)
    return [length if n == 0 else DEAD for length, n in zip(lengths, n_after, strict=True)]


def _merged_classes(
    starts: list[int], classes: list[int], rows: list[list[int]]
) -> tuple[list[int], list[int], list[list[int]]]:
    """The tables with classes that behave alike put together, numbered as they first occur."""
    columns: dict[tuple[int, ...], int] = {}
    alike = [columns.setdefault(column, c) for c, column in enumerate(zip(*rows, strict=True))]
    kept_starts: list[int] = []
    kept_classes: list[int] = []
    numbers: dict[int, int] = {}
    for start, c in zip(starts, classes, strict=True):
        number = numbers.setdefault(alike[c], len(numbers))
        if not kept_classes or kept_classes[-1] != number:
            kept_starts.append(start)
            kept_classes.append(number)
    kept = list(numbers)
    if kept != list(range(len(alike))):
        rows = [[row[c] for c in kept] for row in rows]
    return kept_starts, kept_classes, rows


def explore(
    start: State,
    step: Callable[[State], Sequence[State | None]],
    accepts: Callable[[State], bool],
    key: Callable[[State], Hashable] = lambda state: state,
) -> tuple[list[list[int]], list[bool]]:
    """Tables of what is reached from a state: `step` gives the states after one by class, None where there is none, and
    `key` what tells states apart.

    Raises: TooComplexError beyond MAX_STATES.
    """
    numbers: dict[Hashable, int] = {key(start): 0}
    order: list[State] = [start]
    rows: list[list[int]] = []
    for state in order:
        row = []
        for target in step(state):
            if target is None:
                row.append(DEAD)
                continue
            number = numbers.setdefault(key(target), len(order))
            if number == len(order):
                order.append(target)
            row.append(number)
        rows.append(row)
        _check(len(order), len(row))
    return rows, [accepts(state) for state in order]


def _check(n_states: int, n_classes: int) -> None:
    if n_states > MAX_STATES or n_states * n_classes > MAX_CELLS:
        limits = f"{MAX_STATES} states, or {MAX_CELLS} of states times classes of characters"
        raise TooComplexError(f"a pattern or a list of strings needs more than {limits}")


def joined(one: Automaton, other: Automaton) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Starts and classes of a division of the alphabet that is finer than both, and for each class those of the two."""
    starts = sorted({*one.starts, *other.starts})
    numbers: dict[tuple[int, int], int] = {}
    classes = []
    for start in starts:
        pair = one.class_of(start), other.class_of(start)
        classes.append(numbers.setdefault(pair, len(numbers)))
    return starts, classes, list(numbers)


def combine(one: Automaton, other: Automaton, how: str) -> Automaton:
    """Of two languages their "union", "intersection" or "difference".

    Raises: TooComplexError beyond MAX_STATES.
    """
    starts, classes, pairs = joined(one, other)
    width = other.n_states + 1
    # The last row is that of DEAD, which is number -1.
    first, second = [*one.rows, [DEAD] * one.n_classes], [*other.rows, [DEAD] * other.n_classes]
    ones, others = [*one.accepting, False], [*other.accepting, False]
    needs_one, needs_other = how != "union", how == "intersection"
    dead = one.n_states * width + other.n_states

    def step(state: int) -> list[int | None]:
        a, b = divmod(state, width)
        row, other_row = first[a], second[b]
        found: list[int | None] = []
        for p, q in pairs:
            x, y = row[p], other_row[q]
            if (needs_one and x == DEAD) or (needs_other and y == DEAD):
                found.append(None)
                continue
            target = (x if x != DEAD else one.n_states) * width + (y if y != DEAD else other.n_states)
            found.append(None if target == dead else target)
        return found

    def accepts(state: int) -> bool:
        a, b = divmod(state, width)
        if how == "union":
            return ones[a] or others[b]
        return ones[a] and others[b] == needs_other

    return build(starts, classes, *explore(0, step, accepts))


def are_disjoint(one: Automaton, other: Automaton) -> bool:
    """Whether no word is of both.

    Raises: TooComplexError beyond MAX_STATES.
    """
    _, _, pairs = joined(one, other)
    seen, todo = {(0, 0)}, [(0, 0)]
    while todo:
        a, b = todo.pop()
        if one.accepting[a] and other.accepting[b]:
            return False
        row, other_row = one.rows[a], other.rows[b]
        after = {(row[p], other_row[q]) for p, q in pairs if row[p] != DEAD and other_row[q] != DEAD} - seen
        seen |= after
        todo += after
        if len(seen) > MAX_STATES:
            raise TooComplexError(f"patterns together need more than {MAX_STATES} states")
    return True


def complement(automaton: Automaton) -> Automaton:
    """All other words. States stay as different as they are; one that accepts all words comes or goes."""
    n = automaton.n_states
    rows = [[n if target == DEAD else target for target in row] for row in automaton.rows]
    rows.append([n] * automaton.n_classes)
    accepting = [*(not accepts for accepts in automaton.accepting), True]
    blocks = [*range(n + 1), DEAD]
    for state, row in enumerate(rows):
        if not accepting[state] and all(target == state for target in row):
            blocks[state] = DEAD
    if automaton.is_empty:
        blocks[0] = n
    return _numbered(automaton.starts, automaton.classes, rows, accepting, blocks)


def concatenation(one: Automaton, other: Automaton) -> Automaton:
    """Words of one followed by words of the other.

    Raises: TooComplexError beyond MAX_STATES.
    """
    starts, classes, pairs = joined(one, other)

    def begun(a: int, states: frozenset[int]) -> tuple[int, frozenset[int]] | None:
        if a != DEAD and one.accepting[a]:
            states |= {0}
        return None if a == DEAD and not states else (a, states)

    def step(state: tuple[int, frozenset[int]]) -> list[tuple[int, frozenset[int]] | None]:
        a, states = state
        return [
            begun(
                one.rows[a][p] if a != DEAD else DEAD,
                frozenset(other.rows[b][q] for b in states if other.rows[b][q] != DEAD),
            )
            for p, q in pairs
        ]

    start = begun(0, frozenset())
    assert start is not None
    return build(starts, classes, *explore(start, step, lambda state: any(other.accepting[b] for b in state[1])))


def of_words(words: Sequence[str]) -> Automaton:
    """A finite language. The words hold no surrogates.

    Raises: TooComplexError beyond MAX_STATES.
    """
    letters = sorted({charsets.letter(ord(c)) for word in words for c in word})
    starts, classes, members = charsets.partition([((x, x),) for x in letters])
    column = {letters[member[0]]: c for c, member in enumerate(members) if member}
    rows: list[list[int]] = [[DEAD] * len(members)]
    accepting = [False]
    for word in words:
        state = 0
        for character in word:
            c = column[charsets.letter(ord(character))]
            if rows[state][c] == DEAD:
                rows[state][c] = len(rows)
                rows.append([DEAD] * len(members))
                accepting.append(False)
            state = rows[state][c]
        accepting[state] = True
        _check(len(rows), len(members))
    return build(starts, classes, rows, accepting)


def of_power(charset: Charset, least: int, most: int | None) -> Automaton:
    """From `least` to `most` letters of a charset.

    Raises: TooComplexError beyond MAX_STATES.
    """
    n = (least if most is None else most) + 1
    _check(n, 2)
    starts, classes, members = charsets.partition([charset])
    last = DEAD if most is not None else n - 1
    rows = [[(s + 1 if s + 1 < n else last) if member else DEAD for member in members] for s in range(n)]
    return build(starts, classes, rows, [s >= least for s in range(n)])

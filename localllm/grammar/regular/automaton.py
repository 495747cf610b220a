"""Deterministic automata over letters, minimal and numbered canonically; what they were made of they do not know."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from localllm.grammar.dfa import DEAD
from localllm.grammar.errors import TooComplexError
from localllm.grammar.regular import charsets
from localllm.grammar.regular.charsets import Charset

MAX_STATES = 20_000

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Automaton:
    """A regular language. State 0 is the start; equal languages have equal tables.

    starts: int32 [n_intervals], the first letter of each interval; starts[0] is 0, the last one goes to the alphabet's
    end, and neighbours differ in class.
    classes: int32 [n_intervals], the class of each, numbered as they first occur.
    next: int32 [n_states, n_classes]; DEAD where no word goes on.
    accepting: bool [n_states].

    It is trimmed as a `Dfa` is; the empty language has one state.
    """

    starts: npt.NDArray[np.int32]
    classes: npt.NDArray[np.int32]
    next: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.bool_]

    @property
    def n_states(self) -> int:
        return len(self.accepting)

    @functools.cached_property
    def key(self) -> bytes:
        """Equal for equal languages and for no others: 16 bytes."""
        digest = hashlib.blake2b(digest_size=16)
        for table in (self.starts, self.classes, self.next, self.accepting):
            digest.update(np.ascontiguousarray(table).tobytes() + b"|")
        return digest.digest()

    @functools.cached_property
    def rows(self) -> list[list[int]]:
        """`next` as lists."""
        return self.next.tolist()

    @functools.cached_property
    def charsets(self) -> list[Charset]:
        """The letters of each class."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.next.shape[1])]
        bounds = [*self.starts.tolist(), charsets.LAST_LETTER + 1]
        for i, c in enumerate(self.classes.tolist()):
            found[c].append((bounds[i], bounds[i + 1] - 1))
        return [tuple(intervals) for intervals in found]

    @property
    def is_empty(self) -> bool:
        return not self.accepting.any()

    def class_of(self, letter: int) -> int:
        return int(self.classes[np.searchsorted(self.starts, letter, side="right") - 1])

    def contains(self, text: str) -> bool:
        state = 0
        for character in text:
            code = ord(character)
            if charsets.FIRST_SURROGATE <= code <= charsets.LAST_SURROGATE:
                return False
            state = self.rows[state][self.class_of(charsets.letter(code))]
            if state == DEAD:
                return False
        return bool(self.accepting[state])


def build(
    starts: Sequence[int],
    classes: Sequence[int],
    rows: npt.NDArray[np.int32],
    accepting: npt.NDArray[np.bool_],
) -> Automaton:
    """The minimal automaton of any tables of this kind: states that nothing reaches, that reach nothing or that are
    equal are allowed in them, and so are classes that behave alike."""
    rows, accepting = _trimmed(rows, accepting)
    rows, accepting = _minimal(rows, accepting)
    return _canonical(starts, classes, rows, accepting)


def _trimmed(
    rows: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Without the ways that lead to no accepting state; state 0 stays."""
    useful = accepting.copy()
    while True:
        grown = useful | (useful[rows] & (rows != DEAD)).any(axis=1)
        if (grown == useful).all():
            break
        useful = grown
    if not useful[0]:
        return np.full((1, rows.shape[1]), DEAD, dtype=np.int32), np.zeros(1, dtype=np.bool_)
    numbers = np.where(useful, np.cumsum(useful) - 1, DEAD).astype(np.int32)
    numbers = np.append(numbers, np.int32(DEAD))
    return numbers[rows[useful]], accepting[useful]


def _minimal(
    rows: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """With one state for all that accept the same words."""
    blocks = accepting.astype(np.int32)
    n_blocks = len(np.unique(blocks))
    while True:
        after = np.append(blocks, np.int32(DEAD))[rows]
        _, first, inverse = np.unique(np.column_stack((blocks, after)), axis=0, return_index=True, return_inverse=True)
        blocks = inverse.reshape(-1).astype(np.int32)
        if len(first) == n_blocks:
            break
        n_blocks = len(first)
    start = blocks[0]
    order = np.argsort(np.arange(n_blocks) != start, kind="stable")
    numbers = np.append(np.argsort(order).astype(np.int32), np.int32(DEAD))
    return numbers[np.append(blocks, np.int32(DEAD))[rows[first[order]]]], accepting[first[order]]


def _canonical(
    starts: Sequence[int], classes: Sequence[int], rows: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]
) -> Automaton:
    """With states and classes numbered in the order of their first use, and classes that behave alike put together."""
    columns: dict[bytes, int] = {}
    alike = [columns.setdefault(column.tobytes(), c) for c, column in enumerate(np.ascontiguousarray(rows.T))]
    kept_starts: list[int] = []
    kept_classes: list[int] = []
    numbers: dict[int, int] = {}
    for start, c in zip(starts, classes, strict=True):
        number = numbers.setdefault(alike[c], len(numbers))
        if not kept_classes or kept_classes[-1] != number:
            kept_starts.append(start)
            kept_classes.append(number)
    table = rows[:, list(numbers)].tolist()
    order, places = [0], {0: 0}
    for state in order:
        for target in table[state]:
            if target != DEAD and target not in places:
                places[target] = len(order)
                order.append(target)
    places[DEAD] = DEAD
    renumbered = [[places[target] for target in table[state]] for state in order]
    return Automaton(
        np.array(kept_starts, dtype=np.int32),
        np.array(kept_classes, dtype=np.int32),
        np.array(renumbered, dtype=np.int32).reshape(len(order), len(numbers)),
        accepting[order],
    )


def explore(
    start: State, step: Callable[[State], Sequence[State | None]], accepts: Callable[[State], bool]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Tables of what is reached from a state: `step` gives the states after it by class, None where there is none.

    Raises: TooComplexError beyond MAX_STATES.
    """
    numbers: dict[State | None, int] = {None: DEAD, start: 0}
    order, rows = [start], []
    for state in order:
        row = []
        for target in step(state):
            number = numbers.get(target)
            if number is None:
                assert target is not None
                number = numbers[target] = len(order)
                order.append(target)
            row.append(number)
        rows.append(row)
        if len(order) > MAX_STATES:
            raise TooComplexError(f"a pattern needs more than {MAX_STATES} states")
    return np.array(rows, dtype=np.int32), np.array([accepts(state) for state in order], dtype=np.bool_)


def joined(one: Automaton, other: Automaton) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Starts and classes of a division of the alphabet that is finer than both, and for each class those of the two."""
    starts = np.union1d(one.starts, other.starts)
    ones = one.classes[np.searchsorted(one.starts, starts, side="right") - 1].tolist()
    others = other.classes[np.searchsorted(other.starts, starts, side="right") - 1].tolist()
    numbers: dict[tuple[int, int], int] = {}
    classes = [numbers.setdefault(pair, len(numbers)) for pair in zip(ones, others, strict=True)]
    return starts.tolist(), classes, list(numbers)


def combine(one: Automaton, other: Automaton, how: str) -> Automaton:
    """Of two languages their "union", "intersection" or "difference".

    Raises: TooComplexError beyond MAX_STATES.
    """
    starts, classes, pairs = joined(one, other)
    width = other.n_states + 1
    first, second = [*one.rows, [DEAD] * one.next.shape[1]], [*other.rows, [DEAD] * other.next.shape[1]]
    ones, others = [*one.accepting.tolist(), False], [*other.accepting.tolist(), False]
    needs_one, needs_other = how != "union", how == "intersection"
    dead = one.n_states * width + other.n_states

    def step(state: int) -> list[int | None]:
        a, b = divmod(state, width)
        found: list[int | None] = []
        for p, q in pairs:
            x, y = first[a][p], second[b][q]
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


def complement(automaton: Automaton) -> Automaton:
    """All other words."""
    n_states, n_classes = automaton.next.shape
    rows = np.vstack((automaton.next, np.full((1, n_classes), n_states, dtype=np.int32)))
    rows[rows == DEAD] = n_states
    accepting = np.append(~automaton.accepting, True)
    return build(automaton.starts.tolist(), automaton.classes.tolist(), rows, accepting)


def concatenation(one: Automaton, other: Automaton) -> Automaton:
    """Words of one followed by words of the other.

    Raises: TooComplexError beyond MAX_STATES.
    """
    starts, classes, pairs = joined(one, other)
    accepting = other.accepting.tolist()
    ends = one.accepting.tolist()

    def begun(a: int, states: frozenset[int]) -> tuple[int, frozenset[int]] | None:
        if a != DEAD and ends[a]:
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
    return build(starts, classes, *explore(start, step, lambda state: any(accepting[b] for b in state[1])))


def of_words(words: Sequence[str]) -> Automaton:
    """A finite language. The words hold no surrogates."""
    letters = sorted({charsets.letter(ord(c)) for word in words for c in word})
    starts, classes, members = charsets.partition([((x, x),) for x in letters])
    column = {letters[member.bit_length() - 1]: c for c, member in enumerate(members) if member}
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
    return build(starts, classes, np.array(rows, dtype=np.int32), np.array(accepting, dtype=np.bool_))


def of_power(charset: Charset, least: int, most: int | None) -> Automaton:
    """From `least` to `most` letters of a charset.

    Raises: TooComplexError beyond MAX_STATES.
    """
    n = (least if most is None else most) + 1
    if n > MAX_STATES:
        raise TooComplexError(f"a pattern needs more than {MAX_STATES} states")
    starts, classes, members = charsets.partition([charset])
    rows = np.full((n, len(members)), DEAD, dtype=np.int32)
    for c, member in enumerate(members):
        if member:
            rows[:, c] = np.arange(1, n + 1)
            rows[-1, c] = n - 1 if most is None else DEAD
    accepting = np.arange(n) >= least
    return build(starts, classes, rows, accepting)

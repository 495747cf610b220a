"""Automata from rules for what may follow: explored, trimmed, minimised; what their words mean it does not know."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from localllm.grammar.dfa import DEAD, Dfa
from localllm.grammar.errors import TooComplexError

N_MOST_STATES = 20_000

State: TypeAlias = Hashable
# What follows a state, by symbol: a state, or None where no word goes on so. Symbols are places in a list.
Row: TypeAlias = Sequence[State | None]


class Automaton(Protocol):
    """A deterministic automaton whose states are found on the way."""

    start: State

    def row(self, state: State) -> Row:
        """What follows the state, for each symbol."""

    def accepts(self, state: State) -> bool:
        """Whether a word may end there."""


class Intersection:
    """The words that both have."""

    def __init__(self, first: Automaton, second: Automaton) -> None:
        self._first, self._second = first, second
        self.start: State = (first.start, second.start)

    def row(self, state: State) -> Row:
        first, second = _pair(state)
        pairs = zip(self._first.row(first), self._second.row(second), strict=True)
        return [None if a is None or b is None else (a, b) for a, b in pairs]

    def accepts(self, state: State) -> bool:
        first, second = _pair(state)
        return self._first.accepts(first) and self._second.accepts(second)


class Union:
    """The words that any of them has. A state holds those that are still alive, with their states."""

    def __init__(self, automata: Sequence[Automaton], n_symbols: int) -> None:
        self._automata = automata
        self._n_symbols = n_symbols
        self.start: State = tuple((i, automaton.start) for i, automaton in enumerate(automata))

    def row(self, state: State) -> Row:
        alive = _indexed(state)
        rows = [self._automata[i].row(inner) for i, inner in alive]
        numbers = [i for i, _ in alive]
        columns = zip(*rows, strict=True) if rows else [()] * self._n_symbols
        return [
            tuple([(i, of) for i, of in zip(numbers, column, strict=True) if of is not None]) or None
            for column in columns
        ]

    def accepts(self, state: State) -> bool:
        return any(self._automata[i].accepts(inner) for i, inner in _indexed(state))


def explore(automaton: Automaton, symbols: Sequence[bytes]) -> Dfa:
    """The smallest `Dfa` of an automaton's words: of the same words always the same tables.

    symbols: for each symbol the bytes that it stands for; other bytes are in no word.

    Raises: TooComplexError where it has more than `N_MOST_STATES` states before it is made smaller.
    """
    numbers: dict[State, int] = {automaton.start: 0}
    states: list[State] = [automaton.start]
    rows: list[list[int]] = []
    for state in states:  # which grows
        row = []
        for following in automaton.row(state):
            if following is None:
                row.append(DEAD)
                continue
            number = numbers.setdefault(following, len(states))
            if number == len(states):
                states.append(following)
            row.append(number)
        rows.append(row)
        if len(states) > N_MOST_STATES:
            raise TooComplexError(f"a constraint needs more than {N_MOST_STATES} states (numbers, or their divisors)")
    table = np.array(rows, dtype=np.int32)
    accepting = np.fromiter((automaton.accepts(state) for state in states), np.bool_, len(states))
    classes = np.full(256, len(symbols), np.uint8)
    for symbol, members in enumerate(symbols):
        classes[list(members)] = symbol
    return minimised(classes, np.hstack((table, np.full((len(states), 1), DEAD, np.int32))), accepting)


def minimised(
    classes: npt.NDArray[np.uint8], following: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]
) -> Dfa:
    """The smallest `Dfa` of the same words as these tables', whose shapes are a `Dfa`'s; they need not be trimmed.

    States are numbered as a search in breadth by ascending bytes meets them, classes by their first byte.
    """
    alive = _coreachable(following, accepting)
    following = np.where(alive[following] & (following != DEAD), following, DEAD)
    used = list(dict.fromkeys(classes.tolist()))
    table, accepts = _numbered(following[:, used], _parts(following, accepting, alive), accepting)
    columns: dict[bytes, int] = {}
    merged = {c: columns.setdefault(column.tobytes(), len(columns)) for c, column in zip(used, table.T, strict=True)}
    by_class = np.array([np.frombuffer(column, np.int32) for column in columns]).T
    of_byte = np.array([merged[c] for c in classes.tolist()], np.uint8)
    return Dfa(of_byte, np.ascontiguousarray(by_class), accepts)


def _coreachable(following: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """From which states an accepting one is reached."""
    alive = accepting.copy()
    while True:
        wider = alive | (alive[following] & (following != DEAD)).any(axis=1)
        if (wider == alive).all():
            return alive
        alive = wider


def _parts(
    following: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_], alive: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32]:
    """The number of each state's class of equivalence (Moore's refinement); DEAD for those that are not alive."""
    parts = np.where(alive, accepting.astype(np.int32), DEAD).astype(np.int32)
    n_parts = len(set(parts.tolist()))
    while True:
        behaviour = np.hstack((parts[:, None], np.where(following == DEAD, DEAD, parts[following])))
        rows = np.ascontiguousarray(behaviour, np.int32).view(np.dtype((np.void, 4 * behaviour.shape[1])))
        numbers: dict[bytes, int] = {}
        refined = [numbers.setdefault(row, len(numbers)) for row in rows.ravel().tolist()]
        parts = np.where(alive, np.array(refined, np.int32), DEAD).astype(np.int32)
        if len(numbers) == n_parts:
            return parts
        n_parts = len(numbers)


def _numbered(
    by_class: npt.NDArray[np.int32], parts: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Tables [n_parts, n_classes] and [n_parts] of the parts that are reached from the start, which is the first."""
    numbers = {int(parts[0]): 0}
    representatives = [0]
    rows: list[npt.NDArray[np.int32]] = []
    for state in representatives:  # which grows
        targets = by_class[state]
        for target in dict.fromkeys(targets.tolist()):
            if target != DEAD and numbers.setdefault(int(parts[target]), len(representatives)) == len(representatives):
                representatives.append(target)
        rows.append(np.where(targets == DEAD, DEAD, parts[targets]))
    renumbered = np.full(int(parts.max(initial=0)) + 2, DEAD, np.int32)  # its last place is DEAD's
    for part, number in numbers.items():
        if part != DEAD:
            renumbered[part] = number
    return renumbered[np.array(rows)], accepting[representatives]


def _pair(state: State) -> tuple[State, State]:
    assert isinstance(state, tuple)
    return state


def _indexed(state: State) -> tuple[tuple[int, State], ...]:
    assert isinstance(state, tuple)
    return state

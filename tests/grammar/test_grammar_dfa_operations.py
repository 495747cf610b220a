"""Automata that are explored and made small."""

from hypothesis import given
from hypothesis import strategies as st

from localllm.grammar.dfa import DEAD, Dfa
from localllm.grammar.dfa_operations import Intersection, Row, State, Union, explore

SYMBOLS = (b"ab", b"c")


class Table:
    """An automaton of a table of two symbols; a target beyond the states is none."""

    start: State = 0

    def __init__(self, targets: list[tuple[int, int]], ends: list[bool]) -> None:
        self.targets, self.ends = targets, ends

    def row(self, state: State) -> Row:
        assert isinstance(state, int)
        return [target if target < len(self.targets) else None for target in self.targets[state]]

    def accepts(self, state: State) -> bool:
        assert isinstance(state, int)
        return self.ends[state % len(self.ends)]

    def has(self, word: bytes) -> bool:
        state: State | None = 0
        for byte in word:
            state = self.row(state)[byte == ord("c")]
            if state is None:
                return False
        return self.accepts(state)


tables = st.builds(
    Table,
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=1, max_size=6),
)
words = st.lists(st.text("abc", max_size=8).map(str.encode), max_size=30)


@given(tables, tables, words)
def test_words_are_those_of_the_parts(first: Table, second: Table, samples: list[bytes]) -> None:
    alone, both, either = (
        explore(of, SYMBOLS) for of in (first, Intersection(first, second), Union([first, second], 2))
    )
    for word in samples:
        assert alone.accepts(word) == first.has(word)
        assert both.accepts(word) == (first.has(word) and second.has(word))
        assert either.accepts(word) == (first.has(word) or second.has(word))
    assert not alone.accepts(b"d")


@given(tables)
def test_it_is_trimmed_and_smallest(of: Table) -> None:
    dfa = explore(of, SYMBOLS)
    reached = _words_to_states(dfa)
    assert len(reached) == dfa.n_states
    ends = [frozenset(word for word in _words(5) if _ends(dfa, state, word)) for state in range(dfa.n_states)]
    if not dfa.is_empty:
        assert all(ends)
    assert len(set(ends)) == len(ends)
    assert len({column.tobytes() for column in dfa.next.T}) == dfa.next.shape[1]


def _words(n: int) -> list[bytes]:
    found, longest = [b""], [b""]
    for _ in range(n):
        longest = [word + letter for word in longest for letter in (b"a", b"c")]
        found += longest
    return found


def _ends(dfa: Dfa, state: int, word: bytes) -> bool:
    state = dfa.follow(word, state)
    return state != DEAD and bool(dfa.accepting[state])


def _words_to_states(dfa: Dfa) -> set[int]:
    return {state for word in _words(6) if (state := dfa.follow(word)) != DEAD}

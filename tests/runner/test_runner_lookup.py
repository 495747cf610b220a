"""Guesses from a text's own earlier tokens: found at once, followed through changes, believed as they deserve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.runner.speculation.costs import COSTS, ROWS, StepCosts
from localllm.runner.speculation.lengths import MIN_GAIN, best_lengths
from localllm.runner.speculation.lookup import Lookup
from localllm.runner.speculation.ngrams import MAX_MATCH, SIZES, Ngrams

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def ids(n: int, seed: int) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, 50_000, n)]


def longest(tokens: list[int]) -> tuple[int, int]:
    """What `Ngrams.last` says, by looking everywhere. Of runs with one hash the last one hides the others."""
    for size in SIZES:
        places = {run_hash(tokens[place - size : place]): place for place in range(size, len(tokens))}
        place = places.get(run_hash(tokens[-size:]), 0) if len(tokens) > size else 0
        if place and tokens[place - size : place] == tokens[-size:]:
            n = size
            while n < min(place, MAX_MATCH) and tokens[place - 1 - n] == tokens[-1 - n]:
                n += 1
            return place, n
    return 0, 0


def run_hash(run: list[int]) -> int:
    return Ngrams(run)._hash(len(run))


@settings(deadline=None)
@given(start=TEXTS, rest=TEXTS)
def test_the_most_recent_occurrence_of_the_longest_run_is_found(start: list[int], rest: list[int]) -> None:
    ngrams = Ngrams(start)
    for token in rest:
        ngrams.add(token)
    tokens = start + rest
    assert ngrams.tokens == tokens
    assert ngrams.last() == longest(tokens)


def test_a_text_that_outgrows_its_tables_forgets_nothing() -> None:
    start, rest = ids(30, 1), ids(5000, 2)
    ngrams = Ngrams(start)
    for token in [*rest, *start[:8]]:
        ngrams.add(token)
    assert ngrams.last() == (8, 8)


def hits(original: list[int], copy: list[int]) -> list[bool]:
    """Whether each token of a copy was the first one guessed."""
    lookup = Lookup(original)
    result = []
    for token in copy:
        tokens, chances = lookup.guess(31)
        assert len(tokens) == len(chances) <= 31 and chances == sorted(chances, reverse=True)
        result.append(tokens[:1] == [token])
        lookup.add(token)
    return result


@pytest.mark.parametrize("old, new", [(1, 1), (1, 3), (3, 1), (4, 0), (0, 4), (10, 10)])
def test_a_copy_with_changes_is_followed(old: int, new: int) -> None:
    original = ids(300, 3)
    copy = [*original[:100], *ids(new, 4), *original[100 + old : 200], *ids(new, 5), *original[200 + old :]]
    found = hits(original, copy)
    assert sum(found[2:100]) == 98
    for start in (100 + new, 200 - old + 2 * new):
        assert sum(found[start : start + 90]) >= 88  # at most two tokens pass before the copy is followed again


def test_a_text_that_repeats_itself_is_continued_beyond_its_end() -> None:
    lookup = Lookup([1, 2, 3, 4, 5] * 8)
    tokens, _ = lookup.guess(12)
    assert tokens == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2][: len(tokens)]
    assert len(tokens) > 5


def test_guesses_that_never_come_are_made_no_more() -> None:
    """Each pair occurs again and again, and what follows it is another token every time."""
    lookup, random = Lookup([]), np.random.default_rng(6)
    for _ in range(300):
        for token in (1, 2, int(random.integers(3, 50_000))):
            lookup.add(token)
    lookup.add(1)
    lookup.add(2)
    assert lookup.guess(31) == ([], [])


@settings(max_examples=50)
@given(chances=st.lists(st.lists(st.floats(0.01, 1), max_size=6), max_size=4), n_rows=st.integers(0, 12))
def test_the_lengths_bring_the_most_for_their_cost(chances: list[list[float]], n_rows: int) -> None:
    chances = [[float(x) for x in np.cumprod(row)] for row in chances]
    costs = StepCosts()
    lengths = best_lengths(chances, costs.of, len(chances), n_rows)
    assert sum(lengths) <= n_rows and all(n <= len(row) for n, row in zip(lengths, chances, strict=True))

    def rate(lengths: list[int]) -> float:
        expected = len(chances) + sum(sum(row[:n]) for n, row in zip(lengths, chances, strict=True))
        return expected / costs.of(len(chances) + sum(lengths))

    if any(lengths):
        assert rate(lengths) > MIN_GAIN * rate([0] * len(chances))
    for i, n in enumerate(lengths):
        for other in {0, max(0, n - 1)}:
            assert rate([*lengths[:i], other, *lengths[i + 1 :]]) <= max(
                rate(lengths), MIN_GAIN * rate([0] * len(lengths))
            )


def test_costs_are_learned_from_their_ratios_on_a_machine_whose_speed_changes() -> None:
    costs, random = StepCosts(), np.random.default_rng(7)
    true = {1: 1.0, 4: 1.1, 16: 8.0}
    for i in range(3000):
        n_rows = int(random.choice(list(true)))
        costs.note(n_rows, true[n_rows] * (0.003 if i // 100 % 2 else 0.006) * random.uniform(0.9, 1.1))
    assert costs.of(4) / costs.of(1) == pytest.approx(1.1, rel=0.15)
    assert costs.of(16) / costs.of(1) == pytest.approx(8, rel=0.15)


def test_costs_lie_between_those_known_and_go_on_beyond() -> None:
    costs = StepCosts()
    assert [costs.of(n) for n in ROWS] == list(COSTS)
    assert costs.of(6) == pytest.approx((costs.of(4) + costs.of(8)) / 2)
    assert costs.of(96) > costs.of(64) + (costs.of(64) - costs.of(48))

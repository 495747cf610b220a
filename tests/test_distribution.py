"""Durations in buckets."""

import pytest

from localllm.distribution import BOUNDS_S, Distribution


def test_bounds_are_inclusive_and_what_is_longer_has_a_bucket() -> None:
    durations = Distribution()
    for duration_s in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1] + 1):
        durations.observe(duration_s)
    assert durations.counts == [2, 1, *[0] * (len(BOUNDS_S) - 2), 1]
    assert durations.total_s == pytest.approx(BOUNDS_S[0] * 2.01 + BOUNDS_S[-1] + 1)


def test_adding_another_one() -> None:
    durations, others = Distribution(), Distribution()
    durations.observe(0.002)
    others.observe(0.002)
    durations.add(others.counts, others.total_s)
    assert durations.counts[1] == 2 and durations.total_s == pytest.approx(0.004)
    with pytest.raises(ValueError, match="expected 16 buckets, got 1"):
        durations.add([1], 0.0)

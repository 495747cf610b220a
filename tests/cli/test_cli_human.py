"""Sizes, counts and moments in the listings' words."""

from datetime import datetime, timedelta, timezone

import pytest

from localllm.cli.human import format_bytes, format_count, format_time, parse_time

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (815, "815 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1536, "1.5 KB"),
        (274_302_450, "274 MB"),
        (4_700_000_000, "4.7 GB"),
        (42_520_413_916, "42 GB"),
        (1_200_000_000_000, "1.2 TB"),
    ],
)
def test_bytes(n_bytes: int, text: str) -> None:
    assert format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12"), (12_345, "12K"), (134_515_008, "134.52M"), (8_030_261_248, "8.0B"), (10**9, "1B")]
)
def test_counts(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "Less than a second ago"),
        (1, "1 second ago"),
        (5, "5 seconds ago"),
        (61, "About a minute ago"),
        (200, "3 minutes ago"),
        (3600, "About an hour ago"),
        (5 * 3600, "5 hours ago"),
        (47 * 3600, "47 hours ago"),
        (2 * 86400, "2 days ago"),
        (21 * 86400, "3 weeks ago"),
        (130 * 86400, "4 months ago"),
        (800 * 86400, "2 years ago"),
        (-299, "4 minutes from now"),
        (-(200 * 365 * 86400), "Forever"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert format_time(NOW - timedelta(seconds=seconds), NOW) == text


def test_no_time_is_never() -> None:
    assert format_time(None, NOW) == "Never"


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T12:00:00Z",
        "2026-03-01T12:00:00.000000000Z",
        "2026-03-01T14:00:00.0+02:00",
        "2026-03-01T07:00:00.000000-05:00",
    ],
)
def test_times_are_read_in_every_form(text: str) -> None:
    assert parse_time(text) == NOW


@pytest.mark.parametrize("text", ["", None, "soon", "0001-01-01T00:00:00Z"])
def test_unreadable_and_zero_times_are_none(text: str | None) -> None:
    assert parse_time(text) is None

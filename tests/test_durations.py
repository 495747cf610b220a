"""Go's notation of durations, and the JSON forms of keep_alive."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.durations import FOREVER_NS, DurationError, format_go_duration, parse_go_duration, parse_keep_alive

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@given(INT64)
def test_parse_is_the_inverse_of_format(duration_ns: int) -> None:
    assert parse_go_duration(format_go_duration(duration_ns)) == duration_ns


@given(st.text(alphabet="0123456789.-+hmsunµ x", max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        assert -(2**63) <= parse_go_duration(text) < 2**63
    except DurationError as error:
        assert str(error).startswith("time: ")


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("5m", 300 * 10**9),
        ("1h30m", 5400 * 10**9),
        ("300ms", 300 * 10**6),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("-1m", -60 * 10**9),
        ("+2us", 2000),
        ("2\u00b5s", 2000),
        ("2\u03bcs", 2000),
        ("1m1ms", 60_001_000_000),
        ("0.3333333333333333333h", 1_200_000_000_000 - 1),
        ("2562047h47m16.854775807s", 2**63 - 1),
    ],
)
def test_parse(text: str, duration_ns: int) -> None:
    assert parse_go_duration(text) == duration_ns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'time: invalid duration ""'),
        ("abc", 'time: invalid duration "abc"'),
        ("-", 'time: invalid duration "-"'),
        (".s", 'time: invalid duration ".s"'),
        ("300", 'time: missing unit in duration "300"'),
        ("1h30", 'time: missing unit in duration "1h30"'),
        ("5 m", 'time: unknown unit " m" in duration "5 m"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("9999999999h", 'time: invalid duration "9999999999h"'),
        ("9" * 5000 + "s", f'time: invalid duration "{"9" * 5000}s"'),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(DurationError) as caught:
        parse_go_duration(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1100, "1.1\u00b5s"),
        (2_200_000, "2.2ms"),
        (1_234_567_000, "1.234567s"),
        (90 * 10**9, "1m30s"),
        (3600 * 10**9, "1h0m0s"),
        (-5 * 10**9, "-5s"),
    ],
)
def test_format(duration_ns: int, text: str) -> None:
    assert format_go_duration(duration_ns) == text


@pytest.mark.parametrize(
    ("value", "duration_ns"),
    [
        (0, 0),
        (0.1, 100_000_000),
        (300, 300 * 10**9),
        ("5m", 300 * 10**9),
        ("0", 0),
        (-1, FOREVER_NS),
        (-0.5, FOREVER_NS),
        ("-1s", FOREVER_NS),
        (1e300, FOREVER_NS),
        (10**400, FOREVER_NS),
        (float("inf"), FOREVER_NS),
    ],
)
def test_keep_alive(value: Any, duration_ns: int) -> None:
    assert parse_keep_alive(value) == duration_ns


@pytest.mark.parametrize("value", [True, None, [], {}, "300", "abc", ""])
def test_keep_alive_refused(value: Any) -> None:
    with pytest.raises(DurationError):
        parse_keep_alive(value)

"""Stop strings: nothing leaks, nothing is lost, whatever the cuts between pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.sampling import StopMatcher

PIECES = ["MNO", "PQR", "S", "TU", "V", "Wiiik", " tail"]


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        text, is_stopped = matcher.feed(piece)
        shown.append(text)
        if is_stopped:
            return shown, True
    return [*shown, matcher.flush()], False


@pytest.mark.parametrize(
    ("stops", "expected", "is_stopped"),
    [
        (["PQRSTUV"], "MNO", True),
        (["PQRSX"], "MNOPQRSTUVWiiik tail", False),
        (["QRS"], "MNOP", True),
        (["TUVW"], "MNOPQRS", True),
        (["iik"], "MNOPQRSTUVWi", True),
        (["V", "PQRS"], "MNO", True),
        ([""], "MNOPQRSTUVWiiik tail", False),
        (["tail"], "MNOPQRSTUVWiiik ", True),
        (["TU", "TUV"], "MNOPQRS", True),
    ],
)
def test_table(stops: list[str], expected: str, is_stopped: bool) -> None:
    for pieces in (PIECES, list("".join(PIECES)), ["".join(PIECES)]):
        shown, stopped = run(pieces, stops)
        assert ("".join(shown), stopped) == (expected, is_stopped)


def test_held_text_is_released_as_soon_as_it_is_ruled_out() -> None:
    matcher = StopMatcher(["PQRSX"])
    assert matcher.feed("MNOPQ") == ("MNO", False)
    assert matcher.feed("RS") == ("", False)
    assert matcher.feed("PQ") == ("PQRS", False)
    assert matcher.flush() == "PQ"
    assert matcher.flush() == ""


def test_false_alarm_inside_a_false_alarm() -> None:
    assert run(list("aaab aab"), ["aab"]) == (["", "", "a", ""], True)
    assert run(list("Wiiik"), ["iik"]) == (["W", "", "", "i", ""], True)


def test_the_stop_string_is_named() -> None:
    matcher = StopMatcher(["b", "ab"])
    assert matcher.feed("xab") == ("x", True)
    assert matcher.matched == "ab"


@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", max_size=5), max_size=3),
)
def test_the_cuts_do_not_matter_and_nothing_leaks(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s and s in text]
    expected = text[: min(ends)[1]] if ends else text
    shown, is_stopped = run(pieces, stops)
    assert "".join(shown) == expected
    assert is_stopped == bool(ends)
    partial = ""
    for piece in shown:
        partial += piece
        assert expected.startswith(partial)

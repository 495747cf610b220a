"""Word wrap: nothing lost or doubled, no row too wide, words whole."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from localllm.cli.wrap import WordWrap


def wrap(pieces: list[str], columns: int) -> str:
    written: list[str] = []
    words = WordWrap(written.append, lambda: columns)
    for piece in pieces:
        words.feed(piece)
    words.flush()
    return "".join(written)


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("one two three", 80, "one two three"),
        ("one two three", 8, "one two\nthree"),
        ("one two three", 9, "one two \nthree"),
        ("a  b", 3, "a \nb"),
        ("abcdefghij", 5, "abcd\nefgh\nij"),
        ("ab cdefghij k", 5, "ab \ncdef\nghij\nk"),
        ("one\n\ntwo", 80, "one\n\ntwo"),
        ("汉字汉字", 6, "汉字\n汉字"),
        ("汉字，好", 6, "汉\n字，\n好"),
        ("ab汉cd", 5, "ab汉\ncd"),
        ("x\u0301y\u0301z", 3, "x\u0301y\u0301\nz"),
        ("\tab", 10, "\t\nab"),
        ("👩\u200d👧 a", 80, "👩\u200d👧 a"),
    ],
)
def test_rows(text: str, columns: int, expected: str) -> None:
    assert wrap([text], columns) == expected


def test_an_unfinished_word_waits_for_its_end() -> None:
    written: list[str] = []
    words = WordWrap(written.append, lambda: 80)
    words.feed("hello wor")
    assert "".join(written) == "hello "
    words.feed("ld.")
    assert "".join(written) == "hello "
    words.flush()
    assert "".join(written) == "hello world."


def test_the_width_may_change_on_the_way() -> None:
    written: list[str] = []
    columns = 40
    words = WordWrap(written.append, lambda: columns)
    words.feed("one two three ")
    columns = 10
    words.feed("four five ")
    words.flush()
    assert "".join(written) == "one two three \nfour five"


TEXT = st.text(alphabet="ab \n汉，🦙é\u0301", max_size=60)


@given(TEXT, st.integers(3, 30), st.lists(st.integers(0, 60), max_size=5))
def test_only_blanks_and_line_feeds_change(text: str, columns: int, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    wrapped = wrap(pieces, columns)
    assert wrapped == wrap([text], columns)
    assert wrapped.replace(" ", "").replace("\n", "") == text.replace(" ", "").replace("\n", "")
    assert wrapped.count("\n") >= text.count("\n")
    assert all(cell_len(row) < columns for row in wrapped.split("\n"))


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=9), max_size=20))
def test_words_stay_whole(words: list[str]) -> None:
    assert wrap([" ".join(words)], 10).split() == words

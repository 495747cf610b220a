"""Thinking told apart from content, whatever the cuts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.chat import ThinkingSplitter, thinking_arguments


def split(pieces: list[str], is_open: bool = False) -> tuple[str, str]:
    splitter = ThinkingSplitter(is_open)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.flush()]
    return "".join(t for t, _ in parts), "".join(c for _, c in parts)


CASES = [
    ("<think>\na b\n</think>\n\nanswer", False, ("a b", "answer")),
    ("plain answer", False, ("", "plain answer")),
    ("  plain", False, ("", "  plain")),
    ("\n<think>t</think>c", False, ("t", "c")),
    ("<think></think>c", False, ("", "c")),
    ("<thin air", False, ("", "<thin air")),
    ("t</think>\nc", True, ("t", "c")),
    ("\nt without end", True, ("t without end", "")),
    ("<think>a < b </thin </think>c", False, ("a < b </thin", "c")),
    ("say <think> later", False, ("", "say <think> later")),
    ("<think>t</think>c</think>d", False, ("t", "c</think>d")),
    ("<th", False, ("", "<th")),
]


@pytest.mark.parametrize(("text", "is_open", "expected"), CASES)
def test_cases_whole_and_by_character(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert split([text], is_open) == expected
    assert split(list(text), is_open) == expected


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "a", " ", "\n", "</thi", "nk>"]), max_size=10), st.booleans()
)
def test_the_cuts_do_not_matter(pieces: list[str], is_open: bool) -> None:
    whole = split(["".join(pieces)], is_open)
    assert split(pieces, is_open) == whole
    assert split(list("".join(pieces)), is_open) == whole


def test_arguments_for_templates() -> None:
    assert thinking_arguments(None) == {}
    assert thinking_arguments(False) == {"enable_thinking": False, "thinking": False}
    assert thinking_arguments("high") == {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}

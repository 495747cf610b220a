"""Triggers of lazy grammars: with which token they are met, and what of the text the grammar gets."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.grammar.errors import ConstraintError, PatternError
from localllm.grammar.lazy import Beginning, LazyStart, Trigger, read_triggers


def fed(triggers: list[Trigger], pieces: list[str]) -> tuple[int, bytes, list[int]] | None:
    """At which token a constraint begins, with which head and which tokens; ids are the pieces' places."""
    lazy = LazyStart(triggers)
    for i, piece in enumerate(pieces):
        beginning = lazy.accept(i, piece.encode())
        if beginning is not None:
            assert [piece for _, piece in beginning.tokens] == [pieces[t].encode() for t, _ in beginning.tokens]
            return i, beginning.head, [token for token, _ in beginning.tokens]
    return None


def word(value: str) -> list[Trigger]:
    return [Trigger("word", value)]


def pattern(value: str) -> list[Trigger]:
    return [Trigger("pattern", value)]


def full(value: str) -> list[Trigger]:
    return [Trigger("pattern_full", value)]


@pytest.mark.parametrize(
    ("triggers", "pieces", "expected"),
    [
        (word("<call>"), ["I ", "think", " <call>", "{"], (2, b"<call>", [])),
        (word("<call>"), ["a<", "ca", "ll", ">{", "x"], (3, b"<", [1, 2, 3])),
        (word("<call>"), ["<call>", "{"], (0, b"", [0])),
        (word("<call>"), ["<cal", "<", "call>"], (2, b"", [1, 2])),
        (word("aab"), ["aa", "a", "b"], (2, b"a", [1, 2])),
        (word("a.c*"), ["abcc", "a.c", "*"], (2, b"", [1, 2])),
        (word("🔥"), ["a", "🔥b"], (1, b"", [1])),
        (word("é"), ["è", "x"], None),
        (pattern(r"<tool_\w+>"), ["so", "<tool_", "x", ">", "{"], (3, b"", [1, 2, 3])),
        (
            pattern(r"<think>[\s\S]*</think>\s*(<call>)"),
            ["<call><think>", "a", "</think>", "\n<call>"],
            (3, b"<call>", []),
        ),
        (pattern(r"(?:^|\n)(\{)"), ["a{", "\n", "{"], (2, b"", [2])),
        (pattern(r"(?:^|\n)(\{)"), ["{"], (0, b"", [0])),
        (pattern(r"^\{"), ["a", "{"], None),
        (pattern(r"^\{"), ["{", "a"], (0, b"", [0])),
        (pattern(r"a$"), ["ab", "ba"], (1, b"a", [])),
        (pattern(r"x(1)|y(2)|z"), ["x2", "y1", "wy2"], (2, b"2", [])),
        (pattern(r"x(1)|y(2)|z"), ["x2", "xz"], (1, b"z", [])),
        (pattern(r"(?<name>b)c"), ["a", "bc"], (1, b"", [1])),
        (pattern(r"[(](b)"), ["b", "(b"], (1, b"b", [])),
        (full(r"<think>[\s\S]*</think>\s*(\[)"), ["<think>", "[", "</think>", " ", "["], (4, b"", [4])),
        (full(r"a+(b)"), ["xa", "b"], None),
        (full(r"a+(b)"), ["a", "b"], (1, b"", [1])),
        (full(r"a+(b)"), ["a", "bc", "b"], None),
        (full(r"^a+(b)$"), ["a", "b"], (1, b"", [1])),
        ([Trigger("token", token=2)], ["2", "x", "<call>", "{"], (2, b"", [2])),
        ([*word("x"), Trigger("token", token=2)], ["a", "ax"], (1, b"x", [])),
        ([*word("zz"), *word("x")], ["a", "axzz"], (1, b"zz", [])),
    ],
)
def test_triggers(triggers: list[Trigger], pieces: list[str], expected: tuple[int, bytes, list[int]] | None) -> None:
    assert fed(triggers, pieces) == expected


def test_a_character_may_be_cut() -> None:
    lazy = LazyStart(word("é"))
    assert lazy.accept(0, b"a\xc3") is None
    assert lazy.accept(1, b"\xa9b") == Beginning(b"\xc3", ((1, b"\xa9b"),))


@given(
    st.lists(st.text("ab{", max_size=4), max_size=6),
    st.sampled_from(["ab", "a(b)", "b(a+)b", "(?:a|b)+(\\{)", "^a(b)"]),
)
def test_it_begins_where_a_search_says_so(pieces: list[str], of: str) -> None:
    expected = None
    for i in range(len(pieces)):
        text = "".join(pieces[: i + 1])
        matches = [m for begin in range(len(text) + 1) if (m := re.compile(of).match(text, begin))]
        if matches:
            start = min(m.start(1) if m.re.groups else m.start() for m in matches)
            expected = i, text[start:].encode()
            break
    found = fed(pattern(of), pieces)
    if found is not None:
        i, head, tokens = found
        assert (i, head + "".join(pieces[t] for t in tokens).encode()) == expected
    else:
        assert expected is None


def test_a_hostile_pattern_costs_no_more_than_others() -> None:
    lazy = LazyStart(pattern(r"(?:a|a|aa)*(?:a*)*(b)c"))
    for i in range(300):
        assert lazy.accept(i, b"aaaaaaaaab") is None
    assert lazy.accept(300, b"bc") == Beginning(b"", ((300, b"bc"),))


@pytest.mark.parametrize(
    ("of", "part"),
    [
        ("(a", "("),
        (r"(a)\1", "back-reference"),
        ("(?:x(a))", "within another"),
        ("(a)?b", "is repeated"),
        ("(a){2}", "is repeated"),
        ("(?=a)(b)", "look-ahead"),
        (r"\bfoo", "boundary"),
        ("(?<=a)b", "look-behind"),
        ("a$(b)", '"$"'),
        ("a|(?:b|^c)", '"^"'),
    ],
)
def test_patterns_that_cannot_be_followed_are_refused(of: str, part: str) -> None:
    with pytest.raises(PatternError, match=re.escape(part)):
        LazyStart(pattern(of))


def test_records_of_llama_cpp() -> None:
    records = [
        {"type": 0, "value": "<call>", "token": 7},
        {"type": 1, "value": "<call>"},
        {"type": "pattern", "value": "a+"},
        {"type": 3, "value": "b", "token": -1},
    ]
    assert read_triggers(records) == [Trigger("token", token=7), *word("<call>"), *pattern("a+"), *full("b")]


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({}, "None"),
        ({"type": 4, "value": "x"}, "4"),
        ({"type": True, "value": "x"}, "True"),
        ({"type": "words", "value": "x"}, "words"),
        ({"type": "token"}, "-1"),
        ({"type": "word", "value": ""}, "''"),
        ({"type": "pattern", "value": 5}, "5"),
    ],
)
def test_malformed_records(record: dict, part: str) -> None:
    with pytest.raises(ConstraintError, match=part):
        read_triggers([record])


def test_without_a_trigger_it_would_never_begin() -> None:
    with pytest.raises(ConstraintError, match="no trigger"):
        LazyStart([])

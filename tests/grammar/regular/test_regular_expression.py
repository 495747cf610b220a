"""A language's expression accepts the JSON text, or the UTF-8, of its strings and of no others."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.grammar.expressions import Expression, Literal, Repeat, Sequence, Terminal
from localllm.grammar.regular import FREE_STRING, JSON_CHARACTER, Language, json_string, utf8

LANGUAGES = {
    pattern: Language.of_regex(pattern)
    for pattern in (
        *("^\\w+$", "^[\\x00-\\x1f]*$", "^[^a]{1,3}$", 'é|\\\\|"', "^[\\u{7f0}-\\u{10400}]+$", "^a\\n\\u0001?$"),
        *("^.{0,100}$", "^[\\s\\S]{2,3}$", "^[^\\n]*$", "^$", "^\\x02$", "^(?:ab|\\x1f)$"),
    )
}
CHARACTERS = st.sampled_from('ab\n\t\x00\x01\x1f\x7f"\\/éߠ߰\ud7ff\ue000\uffff\U00010000\U00010400\U0010ffff ')


def _accepts(expression: Expression, data: bytes) -> bool:
    """Of the few kinds of expression that languages become."""
    if isinstance(expression, Literal):
        return expression.data == data
    if isinstance(expression, Terminal):
        return expression.dfa.accepts(data)
    repeat = expression.items[1] if isinstance(expression, Sequence) else expression
    assert isinstance(repeat, Repeat) and isinstance(repeat.item, Terminal)
    if isinstance(expression, Sequence):
        if data[:1] + data[-1:] != b'""' or len(data) < 2:
            return False
        data = data[1:-1]
    n, begin = 0, 0
    for end in range(1, len(data) + 1):
        if repeat.item.dfa.accepts(data[begin:end]):
            n, begin = n + 1, end
    return begin == len(data) and n >= repeat.least and (repeat.most is None or n <= repeat.most)


def _json(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(LANGUAGES)), st.text(CHARACTERS, max_size=5))
def test_texts_are_accepted_as_their_languages_say(pattern: str, text: str) -> None:
    language = LANGUAGES[pattern]
    assert _accepts(json_string(language), _json(text)) == language.contains(text)
    assert _accepts(utf8(language), text.encode()) == language.contains(text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(LANGUAGES)), st.binary(max_size=6))
def test_what_is_no_utf8_is_never_accepted(pattern: str, data: bytes) -> None:
    try:
        expected = LANGUAGES[pattern].contains(data.decode())
    except UnicodeDecodeError:
        expected = False
    assert _accepts(utf8(LANGUAGES[pattern]), data) == expected


@pytest.mark.parametrize("pattern", sorted(LANGUAGES))
def test_automata_are_trimmed(pattern: str) -> None:
    for expression in (json_string(LANGUAGES[pattern]), utf8(LANGUAGES[pattern])):
        if not isinstance(expression, Terminal):
            continue
        dfa = expression.dfa
        reached, todo = {0}, [0]
        while todo:
            for target in set(dfa.next[todo.pop()].tolist()) - {-1} - reached:
                reached.add(target)
                todo.append(target)
        assert reached == set(range(dfa.n_states))
        useful = set(dfa.accepting.nonzero()[0].tolist())
        while more := {s for s in reached - useful if set(dfa.next[s].tolist()) & useful}:
            useful |= more
        assert useful == reached
        assert dfa.next.flags.c_contiguous and dfa.next.dtype == "int32" and dfa.classes.shape == (256,)


@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        ('"a"', True),
        ('"\\u0041"', False),
        ('"\\/"', False),
        ('"/\\n\\u001f\\u001F"', True),
        ('"\\u000a"', False),
        ('"\n"', False),
        ('"\x7f"', True),
    ],
)
def test_the_spelling_is_canonical(text: str, is_json: bool) -> None:
    assert _accepts(json_string(Language.of_strings(["x"]).complement()), text.encode()) == is_json


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from('"\\/bfnrtuU0dD8cCxé\n'), max_size=14))
def test_free_strings_are_those_of_json(text: str) -> None:
    data = f'"{text}"'
    try:
        found = json.loads(data)
        is_string = isinstance(found, str) and not any("\ud800" <= c <= "\udfff" for c in found)
    except ValueError:
        is_string = False
    assert FREE_STRING.accepts(data.encode()) == is_string


@pytest.mark.parametrize("text", ["\\ud83d\\udc32", "\\uD7FF\\uE000", "\\uDBFF\\uDFFF"])
def test_free_strings_hold_escaped_pairs(text: str) -> None:
    assert FREE_STRING.accepts(f'"{text}"'.encode())
    assert not FREE_STRING.accepts(f'"{text[:-1]}"'.encode())
    assert not FREE_STRING.accepts(b'"\\udc32\\ud83d"')


def test_shared_terminals_are_shared() -> None:
    free = json_string(Language.any())
    assert isinstance(free, Terminal) and free.dfa is FREE_STRING
    bounded = json_string(Language.of_length(0, 65535))
    assert isinstance(bounded, Sequence)
    repeat = bounded.items[1]
    assert isinstance(repeat, Repeat) and isinstance(repeat.item, Terminal)
    assert repeat.item.dfa is JSON_CHARACTER and (repeat.least, repeat.most) == (0, 65535)

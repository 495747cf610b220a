"""Few strings, and all but few, as automata: the same texts as the general way has."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localllm.grammar.expressions import Literal, Terminal
from localllm.grammar.regular import Language, json_string
from localllm.grammar.schema.emit_strings import string_text

LETTERS = st.text(st.sampled_from('ab"\\\n\x01\x7fé€😀') | st.characters(exclude_categories=["Cs"]), max_size=4)


@given(words=st.sets(LETTERS, min_size=1, max_size=6), others=st.lists(LETTERS, max_size=6), is_negated=st.booleans())
@example(words={"a", "ab", "abc"}, others=["", "abcd"], is_negated=True)
@example(words={"é", "è"}, others=["ë", "e"], is_negated=True)
def test_texts_are_those_of_the_general_way(words: set[str], others: list[str], is_negated: bool) -> None:
    language = Language.of_strings(words)
    if is_negated:
        language = language.complement()
    quick, general = string_text(language), json_string(language)
    for word in [*words, *others, *(word + "a" for word in words), *(word[:-1] for word in words)]:
        canonical = json.dumps(word, ensure_ascii=False).encode()
        for text in {canonical, json.dumps(word).encode(), canonical[:-1], canonical + b'"'}:
            assert takes(quick, text) is takes(general, text), text
        assert takes(quick, canonical) is ((word in words) != is_negated)


def takes(expression: object, text: bytes) -> bool:
    if isinstance(expression, Literal):
        return expression.data == text
    assert isinstance(expression, Terminal)
    return expression.dfa.accepts(text)


@pytest.mark.parametrize("language", [Language.any(), Language.of_length(1, 3), Language.of_regex("^a+$")])
def test_other_languages_go_the_general_way(language: Language) -> None:
    assert string_text(language) is json_string(language)


def test_the_automaton_of_keys_is_small() -> None:
    keys = string_text(Language.of_strings(f"name{n}" for n in range(40)).complement())
    assert isinstance(keys, Terminal) and keys.dfa.n_states < 70
    assert (keys.dfa.next[:, keys.dfa.classes] >= 0).any(axis=1).sum() == keys.dfa.n_states - 1

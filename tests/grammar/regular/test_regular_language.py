"""Languages are sets: what operations make of them is what sets of strings say, whatever form they are kept in."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.grammar.regular import Language

# All strings of up to three of these stand for all strings.
UNIVERSE = ["".join(letters) for n in range(4) for letters in product("abé", repeat=n)]

LANGUAGES = st.one_of(
    st.lists(st.sampled_from(UNIVERSE), max_size=4).map(Language.of_strings),
    st.lists(st.sampled_from(UNIVERSE), max_size=4).map(lambda words: Language.of_strings(words).complement()),
    st.tuples(st.integers(0, 3), st.none() | st.integers(0, 4)).map(lambda b: Language.of_length(*b)),
    st.sampled_from(["a", "^a", "b$", "^[ab]*$", "^a*b{1,2}$", "^$", "^[^a]{2}$", "[\\s\\S]", "(?:ab)+"]).map(
        Language.of_regex
    ),
    st.sampled_from([Language.any(), Language.none()]),
)


def _members(language: Language) -> set[str]:
    return {text for text in UNIVERSE if language.contains(text)}


@settings(max_examples=300, deadline=None)
@given(LANGUAGES, LANGUAGES)
def test_operations_are_those_of_sets(one: Language, other: Language) -> None:
    first, second = _members(one), _members(other)
    assert _members(one | other) == first | second
    assert _members(one & other) == first & second
    assert _members(one - other) == first - second
    assert _members(one.complement()) == set(UNIVERSE) - first
    assert one.isdisjoint(other) == (one & other).is_empty
    if first & second:
        assert not one.isdisjoint(other)


@settings(max_examples=200, deadline=None)
@given(LANGUAGES, LANGUAGES, LANGUAGES)
def test_equal_languages_have_equal_keys(one: Language, other: Language, third: Language) -> None:
    assert one | other == other | one
    assert (one | other) & third == (one & third) | (other & third)
    assert one - other == (one.complement() | other).complement()
    assert hash(one.complement().complement()) == hash(one)
    assert ((one - other) | (one & other)).key == one.key
    assert (one | one.complement()).is_any
    assert (one & one.complement()).is_empty


@settings(max_examples=150, deadline=None)
@given(LANGUAGES, LANGUAGES)
def test_concatenation_joins_words(one: Language, other: Language) -> None:
    joined = one.concat(other)
    for text in UNIVERSE:
        cuts = range(len(text) + 1)
        assert joined.contains(text) == any(one.contains(text[:i]) and other.contains(text[i:]) for i in cuts)


@settings(max_examples=150, deadline=None)
@given(LANGUAGES)
def test_lengths_and_words_are_told(language: Language) -> None:
    least, most = language.length_bounds()
    lengths = [len(text) for text in _members(language)]
    if lengths:
        assert min(lengths) == least
        assert most is None or max(lengths) <= most
    words = language.strings(100)
    if words is not None:
        assert language.is_finite and Language.of_strings(words) == language
    assert language.is_finite == (most is not None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Language.of_regex("^[\\s\\S]{3,5}$"), Language.of_length(3, 5)),
        (Language.of_regex("[\\s\\S]{3}"), Language.of_length(3, None)),
        (Language.of_regex(""), Language.any()),
        (Language.of_regex("(?:)", anchored=True), Language.of_strings([""])),
        (Language.of_regex("^(?:ab|cd)$"), Language.of_strings(["cd", "ab"])),
        (Language.of_regex("[^\\s\\S]"), Language.none()),
        (Language.of_regex("^[^\\ud800-\\udfff]$"), Language.of_length(1, 1)),
        (
            Language.of_regex("^[a-z]{2}$"),
            Language.of_strings(map("".join, product(map(chr, range(97, 123)), repeat=2))),
        ),
        (Language.of_length(1, None), Language.of_strings([""]).complement()),
        (Language.of_length(3, 2), Language.none()),
    ],
)
def test_the_form_does_not_tell_how_a_language_was_made(one: Language, other: Language) -> None:
    assert one == other
    assert one.key == other.key


def test_many_strings_are_a_language() -> None:
    strings = [f"{n:08}" for n in range(5000)]
    language = Language.of_strings(strings)
    assert language == Language.of_strings(reversed(strings))
    assert language.complement().complement() == language
    assert (language & Language.of_regex("^00000")).strings(1000) == strings[:1000]
    assert language.strings(4999) is None


def test_lengths_stay_cheap() -> None:
    bounded = Language.of_length(1, 10**9) & Language.of_length(0, 10**12) & Language.of_regex("^\\w*$")
    assert bounded.length_bounds() == (1, 10**9)
    assert bounded.contains("a" * 1000)
    assert not bounded.contains("a-")
    assert bounded.strings(1000) is None
    short, long = Language.of_length(0, 65535), Language.of_length(65536, None)
    assert short.complement() == long and long.complement() == short
    assert (short | long).is_any and (long | short).is_any
    assert Language.of_length(1, 10**6) | Language.of_strings([""]) == Language.of_length(0, 10**6)
    assert Language.of_length(5, 10**6) - short == Language.of_length(65536, 10**6)
    assert short.isdisjoint(long)
    assert len(Language.of_regex("^a{70,99}$").strings(30) or []) == 30
    assert Language.of_regex("^a{70,99}$").strings(29) is None


def test_surrogates_are_no_characters() -> None:
    for language in (
        Language.any(),
        Language.of_strings(["a"]).complement(),
        Language.of_regex("."),
        Language.of_length(1, 2),
    ):
        assert not language.contains("\ud800")
    assert Language.of_strings(["\udfff"]).is_empty

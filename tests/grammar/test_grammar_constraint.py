"""The compiled automaton against the plain one: the same tokens everywhere, whatever the grammar and the vocabulary."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.grammar.constraint import Constraint, Matcher
from localllm.grammar.errors import GrammarError
from localllm.grammar.expressions import (
    Choice,
    Expression,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Sequence,
    Terminal,
    TokenSet,
    optional,
)
from localllm.grammar.regular import FREE_STRING, JSON_CHARACTER, Language, json_string, utf8
from localllm.grammar.twin import Matcher as Twin
from localllm.grammar.vocabulary import Vocabulary

EOS, CONTROL = 0, 1
WORDS = ["ab", "ba", "abc", "aab", "aa" * 9, '","', '":"', 'a"', 'b",', '\\"', "\\n", "\\u00", "é", "日本", "12", '{"']
BYTES = [bytes([byte]) for byte in range(256)]
PIECES = [b"</s>", b"<x>", *BYTES, *(word.encode() for word in WORDS), b"a", b"", b"\xe6\x97", b'a" b']


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(PIECES, [EOS], [CONTROL])


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    mask = np.empty(vocabulary.n_words, np.uint32)
    matcher.fill_mask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def walk_beside(grammar: Grammar, vocabulary: Vocabulary, seed: int, n: int = 12) -> None:
    """Random tokens through both automata, which must agree before and after each."""
    chosen = random.Random(seed)
    matcher = Constraint(grammar, vocabulary).matcher()
    twin = Twin(grammar, [None if token in (EOS, CONTROL) else piece for token, piece in enumerate(PIECES)])
    for _ in range(n):
        tokens = allowed(matcher, vocabulary)
        assert [token for token in tokens if token != EOS] == [token for token in twin.allowed() if token != EOS]
        assert (EOS in tokens) == matcher.is_complete() == twin.is_complete()
        assert not any(matcher.clone().accept(token) for token in set(range(len(PIECES))) - set(tokens))
        going_on = [token for token in tokens if token != EOS]
        assert matcher.is_finished() == (not going_on)
        if not going_on:
            return
        token = chosen.choice(going_on)
        assert matcher.accept(token)
        assert twin.accept(token)


LEAVES = [Literal(b"a"), Literal(b"ab"), Literal("é".encode()), Literal(b'"'), Reference("other"), Literal(b"")]
LEAVES += [Terminal(FREE_STRING), utf8(Language.of_regex("^[a-c日]+$")), utf8(Language.of_regex("a"))]
LEAVES += [json_string(Language.of_regex("^(a|b)*$")), json_string(Language.of_strings(["a", "ab"]).complement())]
LEAVES += [TokenSet(frozenset({2, 5, CONTROL})), TokenSet(frozenset({3, 4, EOS}), negated=True)]
EXPRESSIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: Sequence(tuple(items))),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: Choice(tuple(items))),
        st.builds(
            lambda item, least, more: Repeat(item, least, None if more is None else least + more),
            inner | st.just(Terminal(JSON_CHARACTER)),
            st.integers(0, 30),
            st.none() | st.integers(0, 30),
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, st.integers(0, 1 << 20))
def test_tokens_are_those_of_the_twin(vocabulary: Vocabulary, root: Expression, other: Expression, seed: int) -> None:
    grammar = Grammar({"root": root, "other": Sequence((Literal(b"["), optional(other), Literal(b"]")))})
    try:
        walk_beside(grammar, vocabulary, seed)
    except GrammarError:
        return  # what is refused is for the twin's tests to say


@pytest.mark.parametrize("least", [0, 3, 40])
@pytest.mark.parametrize("most", [None, 50, 500])
def test_counted_strings_near_and_far_from_their_bounds(vocabulary: Vocabulary, least: int, most: int | None) -> None:
    string = Sequence((Literal(b'"'), Repeat(Terminal(JSON_CHARACTER), least, most), Literal(b'"')))
    for seed in range(3):
        walk_beside(Grammar({"root": string}), vocabulary, seed, 40)


def test_bounds_hold_exactly(vocabulary: Vocabulary) -> None:
    string = Sequence((Literal(b'"'), Repeat(Terminal(JSON_CHARACTER), 300, 302), Literal(b'"')))
    constraint = Constraint(Grammar({"root": string}), vocabulary)
    for n in (299, 300, 302, 303):
        matcher = constraint.matcher()
        is_taken = matcher.accept_bytes(b'"' + "é".encode() * n + b'"')
        assert (is_taken and matcher.is_finished()) == (300 <= n <= 302)


def test_states_are_forgotten_and_nothing_changes(vocabulary: Vocabulary) -> None:
    value = Choice((Terminal(FREE_STRING), Sequence((Literal(b"["), optional(Reference("list")), Literal(b"]")))))
    items = Sequence((Reference("root"), Repeat(Sequence((Literal(b","), Reference("root"))), 0, 1000)))
    grammar = Grammar({"root": value, "list": items})
    constraint, plain = Constraint(grammar, vocabulary), Constraint(grammar, vocabulary)
    constraint.max_states = 100
    matcher, other, still = constraint.matcher(), plain.matcher(), constraint.matcher()
    text = b"[" * 30 + b'"ab",["a","b"],' * 40 + b'"a"' + b"]" * 30
    for byte in text:
        assert allowed(matcher, vocabulary) == allowed(other, vocabulary)
        assert matcher.accept_bytes(bytes([byte])) and other.accept_bytes(bytes([byte]))
    assert matcher.is_finished()
    assert constraint.n_states < plain.n_states
    assert still.accept_bytes(text)
    assert still.is_finished()


def test_ends(vocabulary: Vocabulary) -> None:
    matcher = Constraint(Grammar({"root": Choice((Literal(b"a"), Literal(b"ab")))}), vocabulary).matcher()
    assert not matcher.accept(EOS)
    assert matcher.accept(PIECES.index(b"a"))
    assert allowed(matcher, vocabulary) == [EOS, PIECES.index(b"b")]
    ended = matcher.clone()
    assert ended.accept(EOS)
    assert ended.is_finished()
    assert allowed(ended, vocabulary) == []
    assert not ended.accept(PIECES.index(b"b"))
    assert matcher.accept(PIECES.index(b"b"))
    assert matcher.is_finished()


def test_tokens_of_the_same_bytes_are_all_allowed(vocabulary: Vocabulary) -> None:
    same = [token for token, piece in enumerate(PIECES) if piece == b"a"]
    assert len(same) == 2
    assert allowed(Constraint(Grammar({"root": Literal(b"a")}), vocabulary).matcher(), vocabulary) == same


def test_forced_bytes(vocabulary: Vocabulary) -> None:
    grammar = Grammar(
        {"root": Sequence((Literal(b"abc"), Choice((Literal(b"x1"), Literal(b"x2"))), optional(Literal(b"!"))))}
    )
    matcher = Constraint(grammar, vocabulary).matcher()
    assert matcher.forced_bytes() == b"abcx"
    assert matcher.forced_bytes(2) == b"ab"
    assert matcher.accept_bytes(b"abcx1")
    assert matcher.forced_bytes() == b""
    assert matcher.accept_bytes(b"!")
    assert matcher.forced_bytes() == b""


def test_drafts_leave_a_matcher_where_it_was(vocabulary: Vocabulary) -> None:
    matcher = Constraint(Grammar({"root": Repeat(Literal(b"ab"), 0, 2)}), vocabulary).matcher()
    ab, a, b = (PIECES.index(piece) for piece in (b"ab", b"a", b"b"))
    assert matcher.n_accepted([a, b, ab, ab]) == 3
    assert matcher.n_accepted([b]) == 0
    assert matcher.accept(ab)


def test_control_tokens_match_no_bytes(vocabulary: Vocabulary) -> None:
    matcher = Constraint(Grammar({"root": Literal(b"<x></s>")}), vocabulary).matcher()
    assert allowed(matcher, vocabulary) == [PIECES.index(b"<")]
    assert not matcher.accept(CONTROL)
    taken = Constraint(Grammar({"root": TokenSet(frozenset({CONTROL}))}), vocabulary).matcher()
    assert allowed(taken, vocabulary) == [CONTROL]
    assert taken.accept(CONTROL)


@pytest.mark.parametrize("token", [-1, len(PIECES), 1 << 40])
def test_tokens_out_of_range_are_not_taken(vocabulary: Vocabulary, token: int) -> None:
    assert not Constraint(Grammar({"root": Literal(b"a")}), vocabulary).matcher().accept(token)


def test_a_trie_has_every_token_once() -> None:
    pieces = [bytes(word) for n in range(1, 4) for word in itertools.product(b"ab\xff", repeat=n)]
    random.Random(1).shuffle(pieces)
    everything = Repeat(Choice(tuple(Literal(bytes([byte])) for byte in b"ab\xff")), 0, None)
    vocabulary = Vocabulary([*pieces, b"</s>"], [len(pieces)])
    matcher = Constraint(Grammar({"root": everything}), vocabulary).matcher()
    assert allowed(matcher, vocabulary) == list(range(len(pieces) + 1))


def test_a_step_costs_the_same_whatever_the_count(vocabulary: Vocabulary) -> None:
    number = utf8(Language.of_regex("^[0-9]{1,3}$"))
    items = Sequence((number, Repeat(Sequence((Literal(b","), number)), 11, 899)))
    constraint = Constraint(Grammar({"root": Sequence((Literal(b"["), items, Literal(b"]")))}), vocabulary)
    matcher = constraint.matcher()
    assert matcher.accept_bytes(b"[1")
    n_states = []
    for _ in range(899):
        allowed(matcher, vocabulary)
        assert matcher.accept_bytes(b",")
        allowed(matcher, vocabulary)
        assert matcher.accept_bytes(b"12")
        n_states.append(constraint.n_states)
    growth = np.diff(n_states)
    assert growth[800:890].mean() == growth[20:100].mean()
    assert not matcher.accept_bytes(b",")
    assert matcher.accept_bytes(b"]")

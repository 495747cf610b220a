"""Grammars by the plain automaton: what is a text of them, and which grammars are refused."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localllm.grammar.errors import GrammarError, LeftRecursionError, TooComplexError
from localllm.grammar.expressions import (
    EMPTY,
    NEVER,
    Choice,
    Expression,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Sequence,
    optional,
)
from localllm.grammar.lowering import lower
from localllm.grammar.twin import Matcher, matches

A, B = Literal(b"a"), Literal(b"b")

EXPRESSIONS = st.recursive(
    st.sampled_from([A, B, Literal(b"ab"), EMPTY, NEVER]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: Sequence(tuple(items))),
        st.lists(inner, max_size=3).map(lambda items: Choice(tuple(items))),
        st.builds(
            lambda item, least, more: Repeat(item, least, None if more is None else least + more),
            inner,
            st.integers(0, 3),
            st.none() | st.integers(0, 2),
        ),
    ),
    max_leaves=8,
)
TEXTS = [bytes(text) for n in range(6) for text in itertools.product(b"ab", repeat=n)]


def ends(expression: Expression, text: bytes, starts: frozenset[int]) -> frozenset[int]:
    """Where words end that start at one of the given places of a text."""
    if isinstance(expression, Literal):
        return frozenset(i + len(expression.data) for i in starts if text.startswith(expression.data, i))
    if isinstance(expression, Choice):
        return frozenset().union(*(ends(item, text, starts) for item in expression.items))
    if isinstance(expression, Sequence):
        for item in expression.items:
            starts = ends(item, text, starts)
        return starts
    assert isinstance(expression, Repeat)
    for _ in range(expression.least):
        starts = ends(expression.item, text, starts)
    found = starts
    for _ in range(len(text) + 1 if expression.most is None else expression.most - expression.least):
        starts = ends(expression.item, text, starts)
        found |= starts
    return found


@settings(max_examples=300, deadline=None)
@example(Repeat(Sequence((A, Repeat(NEVER, 1, None))), 0, 2))
@given(EXPRESSIONS)
def test_words_of_an_expression(expression: Expression) -> None:
    words = [text for text in TEXTS if len(text) in ends(expression, text, frozenset({0}))]
    grammar = Grammar({"root": expression})
    try:
        lower(grammar)
    except GrammarError as error:
        assert "nothing matches" in str(error)
        assert not words
        return
    assert [text for text in TEXTS if matches(grammar, text)] == words


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, st.sampled_from(TEXTS))
def test_what_is_accepted_can_be_finished(expression: Expression, text: bytes) -> None:
    """No prefix is accepted that no word begins with, of the words up to a length that shows all there are."""
    grammar = Grammar({"root": expression})
    try:
        matcher = Matcher(grammar)
    except GrammarError:
        return
    if not matcher.accept_bytes(text):
        assert not any(word.startswith(text) and matches(grammar, word) for word in TEXTS)
        return
    for _ in range(60):
        if matcher.is_complete():
            return
        assert matcher.accept_bytes(b"a") or matcher.accept_bytes(b"b")
    # A text that goes on for ever may have gone the longer way; its other letter ends it sooner or later.


def test_recursion() -> None:
    value = Choice((A, Sequence((Literal(b"["), optional(Reference("items")), Literal(b"]")))))
    items = Sequence((Reference("value"), Repeat(Sequence((Literal(b","), Reference("value"))), 0, None)))
    grammar = Grammar({"value": value, "items": items}, "value")
    assert all(matches(grammar, text) for text in (b"a", b"[]", b"[a,[],[a]]", b"[" * 200 + b"]" * 200))
    assert not any(matches(grammar, text) for text in (b"", b"[", b"[a,]", b"[]]", b"[" * 200 + b"]" * 199))


def test_exponentially_many_readings_are_followed_at_once() -> None:
    nested = [Sequence((A, Reference("root"), Literal(end))) for end in (b"x", b"y", b"xx")]
    rule = Choice((*nested, B))
    grammar = Grammar({"root": rule})
    assert matches(grammar, b"a" * 60 + b"b" + b"xy" * 30)
    assert not matches(grammar, b"a" * 60 + b"b" + b"xy" * 29)


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ({"root": Choice((Sequence((Reference("root"), A)), A))}, ("root", "root")),
        ({"root": Reference("e"), "e": Choice((A, Sequence((Reference("e"), B))))}, ("e", "e")),
        (
            {"root": Choice((A, Reference("x"))), "x": Choice((B, Sequence((Reference("root"), A))))},
            ("root", "x", "root"),
        ),
        ({"root": Choice((A, Sequence((Reference("n"), Reference("root"))))), "n": optional(B)}, ("root", "root")),
    ],
)
def test_left_recursion_is_named(rules: dict[str, Expression], names: tuple[str, ...]) -> None:
    with pytest.raises(LeftRecursionError) as caught:
        lower(Grammar(rules))
    assert caught.value.rules == names


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"start": A}, 'no rule "root"'),
        ({"root": Reference("missing")}, '"missing"'),
        ({"root": Sequence((A, Reference("root")))}, "nothing matches"),
        ({"root": NEVER}, "nothing matches"),
        ({"root": Repeat(A, 5, 2)}, "from 5 to 2"),
    ],
)
def test_grammars_that_are_refused(rules: dict[str, Expression], text: str) -> None:
    with pytest.raises(GrammarError, match=text):
        lower(Grammar(rules))


def test_limits() -> None:
    with pytest.raises(TooComplexError):
        lower(Grammar({"root": Repeat(optional(A), 0, 1000)}))
    with pytest.raises(TooComplexError):
        lower(Grammar({"root": Literal(b"a" * 3_000_000)}))


def test_sharing_is_cheap_and_depth_is_no_problem() -> None:
    shared: Expression = A
    for _ in range(40):
        shared = Sequence((shared, shared))
    assert len(lower(Grammar({"root": shared})).nodes) < 200
    deep: Expression = A
    for _ in range(3000):
        deep = Sequence((Literal(b"("), deep, Literal(b")")))
    assert matches(Grammar({"root": deep}), b"(" * 3000 + b"a" + b")" * 3000)

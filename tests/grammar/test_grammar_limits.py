"""What masks may take of time, memory and vocabulary: beyond it there is an error, and never a wrong mask."""

import itertools
import random
import string

import numpy as np
import pytest

from kernels_cpu.automata import layout
from localllm.grammar import constraint as constraints
from localllm.grammar.constraint import Constraint, Matcher
from localllm.grammar.errors import GrammarError, TooComplexError
from localllm.grammar.expressions import Choice, Expression, Grammar, Literal, Repeat, Sequence, TokenSet, sequence
from localllm.grammar.gbnf import parse_gbnf
from localllm.grammar.regular import Language, utf8
from localllm.grammar.twin import Matcher as Twin
from localllm.grammar.vocabulary import MAX_PLAIN, MAX_TRIE, Vocabulary

BYTES = [bytes([byte]) for byte in range(256)]
EOS = 256


def letters() -> Expression:
    return utf8(Language.of_regex("[a-z]", anchored=True))


def allowed(matcher: Matcher, n_vocab: int) -> list[int]:
    mask = np.empty(-(-n_vocab // 32), np.uint32)
    matcher.fill_mask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def test_a_mask_that_takes_too_long_is_an_error_and_the_next_grammar_is_none_the_worse() -> None:
    random.seed(1)
    words = {"".join(random.choices(string.ascii_lowercase, k=6)).encode() for _ in range(30_000)}
    pieces = [*BYTES, b"", *sorted(words)]
    vocabulary = Vocabulary(pieces, [EOS])
    # Nearly every text leads to a state of its own, of hundreds of readings.
    waiting = [
        sequence(Literal(letter.encode()), Repeat(letters(), 200, 200), Literal(f"!{i}".encode()))
        for i, letter in enumerate(string.ascii_lowercase * 20)
    ]
    root = Sequence((Repeat(letters(), 0, None), Choice(tuple(waiting))))
    hard = Constraint(Grammar({"root": root}), vocabulary)
    matcher = hard.matcher()
    with pytest.raises(TooComplexError, match="too long to find"):
        for token in (97, 98, 99, 100):
            allowed(matcher, len(pieces))
            assert matcher.accept(token)
    assert matcher.accept(97)
    easy = Constraint(Grammar({"root": Choice((Literal(b"ab"), Literal(b"c")))}), vocabulary).matcher()
    assert allowed(easy, len(pieces)) == [97, 99]


def test_a_state_of_more_readings_than_are_followed() -> None:
    n = 9_000
    chosen = [TokenSet(frozenset((257,))) for _ in range(2 * n)]
    by_byte = Sequence((Literal(b"a"), Choice(tuple(chosen[:n]))))
    by_token = Sequence((TokenSet(frozenset((97,))), Choice(tuple(chosen[n:]))))
    vocabulary = Vocabulary([*BYTES, b"", b"<x>"], [EOS], [257])
    matcher = Constraint(Grammar({"root": Choice((by_byte, by_token))}), vocabulary).matcher()
    assert matcher.accept(97)
    with pytest.raises(TooComplexError, match="ways at once"):
        matcher.accept(257)
    with pytest.raises(TooComplexError, match="ways at once"):
        matcher.accept(98)


def test_room_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary([*BYTES, b""], [EOS])
    monkeypatch.setattr(constraints, "MAX_ROOM", (64, 1 << 20, 64, 1 << 20))
    many, few = Repeat(Literal(b"ab"), 1000, 1000), Repeat(Literal(b"cd"), 1, 20)
    constraint = Constraint(Grammar({"root": Choice((many, few))}), vocabulary)
    matcher, other, beside = constraint.matcher(), constraint.matcher(), constraint.matcher()
    assert beside.accept_bytes(b"cdc")
    with pytest.raises(TooComplexError, match="needs more than 64 states"):
        matcher.accept_bytes(b"ab" * 100)
    assert matcher.accept_bytes(b"ab") and allowed(matcher, 257) == [97]
    # What one text needed is in nobody's way.
    assert other.accept_bytes(b"cd" * 20) and other.is_finished()
    assert allowed(beside, 257) == [100] and beside.accept_bytes(b"d" + b"cd" * 18) and beside.is_complete()


def test_one_kind_of_room_may_be_full_while_others_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary([*BYTES, b""], [EOS])
    monkeypatch.setattr(constraints, "MAX_ROOM", (1 << 10, 1 << 16, 1 << 10, 1 << 16))
    letters = Choice(tuple(Literal(bytes([97 + i % 20, 33 + i % 7, i % 256])) for i in range(2000)))
    constraint = Constraint(Grammar({"root": Repeat(letters, 0, 30)}), vocabulary)
    text = bytes([97, 33, 0]) * 25  # 2,000 parts in every third state: more than half of what there is room for
    assert constraint.matcher().accept_bytes(text)
    assert 2 * int(constraint._record[layout.N_CELLS]) > 1 << 16
    constraint._make_pools(32, 1 << 16, 32, 1 << 16)
    constraint._start = constraint.answer(layout.START)
    assert constraint.matcher().accept_bytes(text)


def test_a_state_in_many_terminals_learns_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "MAX_KNOWN_BYTES", 100)
    pieces = [*BYTES, b"", b"aB", b"ab1", b"b2"]
    words = [utf8(Language.of_regex(f"[a-zA-Z]{{{n},{n + 9}}}", anchored=True)) for n in range(1, 8)]
    ends = [Literal(f"{i}".encode()) for i in range(len(words))]
    grammar = Grammar({"root": Choice(tuple(sequence(*pair) for pair in zip(words, ends, strict=True)))})
    matcher = Constraint(grammar, Vocabulary(pieces, [EOS])).matcher()
    twin = Twin(grammar, [None if token == EOS else piece for token, piece in enumerate(pieces)])
    for token in (97, 66, 99, 100):
        assert allowed(matcher, len(pieces)) == twin.allowed()
        assert matcher.accept(token) and twin.accept(token)


def test_what_is_known_of_terminals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [*BYTES, b"", b"ab", b"abc", b"a1", b"b ", b"zz"]
    grammar = Grammar({"root": Sequence((utf8(Language.of_regex("[a-zA-Z]{0,40}", anchored=True)), Literal(b" ")))})
    monkeypatch.setattr(constraints, "MAX_KNOWN_BYTES", 300)
    vocabulary = Vocabulary(pieces, [EOS])
    constraint = Constraint(grammar, vocabulary)
    matcher = constraint.matcher()
    twin = Twin(grammar, [None if token == EOS else piece for token, piece in enumerate(pieces)])
    for token in itertools.repeat(97, 40):
        assert allowed(matcher, len(pieces)) == twin.allowed()
        assert matcher.accept(token) and twin.accept(token)
        assert sum(known.n_bytes for known in constraint._known.values()) < 900
    assert allowed(matcher, len(pieces)) == [32]
    monkeypatch.setattr("localllm.grammar.vocabulary.MAX_ROWS_BYTES", 300)
    other = Constraint(grammar, Vocabulary(pieces, [EOS]))
    matcher = other.matcher()
    for token in itertools.repeat(97, 40):
        allowed(matcher, len(pieces))
        assert matcher.accept(token)
        assert sum(known.n_bytes for known in other.vocabulary._rows.values()) < 600


def test_long_texts_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary([*BYTES, b""], [EOS])
    constraint = Constraint(Grammar({"root": Sequence((Repeat(Literal(b"ab"), 1, 5000), Literal(b"!")))}), vocabulary)
    constraint.max_states = 1000
    matcher = constraint.matcher()
    assert not matcher.accept_bytes(b"ab" * 4000 + b"?") and allowed(matcher, 257) == [97]
    assert matcher.accept_bytes(b"ab" * 4000) and allowed(matcher, 257) == [33, 97]
    assert constraint.n_states < 10_000 and matcher.accept_bytes(b"!") and matcher.is_finished()


def test_ends_of_texts_outside_the_vocabulary() -> None:
    vocabulary = Vocabulary([*BYTES, b""], [EOS, 9_999_999, -1])
    matcher = Constraint(Grammar({"root": Literal(b"a")}), vocabulary).matcher()
    assert matcher.accept(97) and allowed(matcher, 257) == [EOS]
    assert not matcher.accept(9_999_999) and matcher.accept(EOS)
    assert not matcher.accept(EOS) and matcher.is_finished() and allowed(matcher, 257) == []


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (TokenSet(frozenset((300,))), "no token 300"),
        (TokenSet(frozenset((EOS,))), "token 256 ends a text"),
        (TokenSet(frozenset(range(256)), negated=True), "has none that may be written"),
    ],
)
def test_a_set_of_tokens_that_there_are_not(tokens: TokenSet, text: str) -> None:
    with pytest.raises(GrammarError, match=text):
        Constraint(Grammar({"root": Sequence((Literal(b"a"), tokens))}), Vocabulary([*BYTES, b""], [EOS]))


def test_tokens_that_are_long() -> None:
    pieces = [*BYTES, b"", *(b"a" * n for n in (MAX_PLAIN - 1, MAX_PLAIN, MAX_PLAIN + 1, 5000))]
    vocabulary = Vocabulary(pieces, [EOS])
    assert len(vocabulary._plain) == MAX_PLAIN + 1
    string_of = parse_gbnf('root ::= "\\"" [^"\\\\\\x00-\\x1f]{0,300} "\\""')
    matcher = Constraint(string_of, vocabulary).matcher()
    assert matcher.accept(ord('"'))
    assert [token for token in allowed(matcher, len(pieces)) if token > EOS] == [257, 258, 259]
    with pytest.raises(TooComplexError, match="bytes or more"):
        Vocabulary([b"a" * MAX_TRIE], [])

"""SPM against the sentencepiece library, which is given the same vocabulary, and the cutting of text into words."""

from __future__ import annotations

import itertools
import json
import lzma
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.tokenizer import Tokenizer
from localllm.tokenizer.merging import LONG_WORD, NO_RANK, PairMerger, Remembered
from localllm.tokenizer.spaces import characters_before_spaces, splitter_at_spaces

Make = Callable[..., Tokenizer]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

# ------------------------------------------------------------- sentencepiece_model.proto


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + _varint(number >> 7) if number > 0x7F else bytes([number])


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _numbers(*fields: tuple[int, int]) -> bytes:
    return b"".join(_varint(field << 3) + _varint(value) for field, value in fields)


def oracle(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> Callable[[str], list[int]]:
    """The library's ids; its unknown token is one more, behind the last. Control tokens keep only their place."""
    import struct

    kinds = {CONTROL: 3, UNKNOWN: 3, BYTE: 6}
    pieces = b""
    for i, (text, kind, score) in enumerate(zip(tokens, types, scores, strict=True)):
        name = f"\x01{i}" if kind in (CONTROL, UNKNOWN) else text
        record = _message(1, name.encode()) + b"\x15" + struct.pack("<f", score) + _numbers((3, kinds.get(kind, 1)))
        pieces += _message(1, record)
    pieces += _message(1, _message(1, b"\x01unknown") + _numbers((3, 2)))
    absent = (1 << 64) - 1
    trainer = _numbers((3, 2), (35, int(BYTE in types)), (40, len(tokens)), (41, absent), (42, absent), (43, absent))
    normalizer = _message(1, b"identity") + _numbers((3, 0), (4, 0), (5, 1))
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(pieces + _message(2, trainer) + _message(3, normalizer))
    encode: Callable[[str], list[int]] = processor.encode
    return encode


# ----------------------------------------------------------------------- against it

LETTERS = "abé中🦙▁\n>"
PIECES = st.lists(st.text(LETTERS, min_size=1, max_size=6), unique=True, max_size=40)
TEXT = st.text("abé中🦙▁ \n>\x00\u0301x", max_size=80)


@given(data=st.data(), pieces=PIECES, has_bytes=st.booleans())
@settings(max_examples=250, deadline=None)
def test_any_vocabulary(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, pieces: list[str], has_bytes: bool
) -> None:
    """Ties of scores, tokens across spaces, tokens of characters that are none, tokens that no merge reaches."""
    scores = data.draw(st.lists(st.integers(-4, 0), min_size=len(pieces), max_size=len(pieces)))
    kinds = data.draw(
        st.lists(st.sampled_from([NORMAL, NORMAL, NORMAL, UNUSED, CONTROL]), min_size=len(pieces), max_size=len(pieces))
    )
    tokens, types = ["<unk>", *pieces], [UNKNOWN, *kinds]
    all_scores = [0.0, *map(float, scores)]
    if has_bytes:
        tokens, types, all_scores = tokens + BYTES, types + [BYTE] * 256, all_scores + [0.0] * 256
    theirs = oracle(tokens, types, all_scores)
    ours = spm(tokens, types, all_scores)
    for text in (data.draw(TEXT), "".join(pieces), " ".join(pieces), data.draw(TEXT) * 20):
        expected = [0 if token == len(tokens) else token for token in theirs(text)]
        assert ours(text) == expected


def spm(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> Callable[[str], list[int]]:
    """Our ids, with 0 as the unknown token."""
    import numpy as np

    from localllm.tokenizer.spm import SPM, rank_tokens
    from localllm.tokenizer.texts import Buckets, TokenTexts, hash_texts, token_starts

    texts = [token.encode() for token in tokens]
    body = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    table = TokenTexts(body, token_starts(body, len(texts)), Buckets(*Buckets.group(hash_texts(texts))))
    ranked = rank_tokens(texts, np.array(scores, np.float32), np.array(types, np.int32))
    return SPM(table, type(ranked).from_arrays(ranked.to_arrays()), False, 0).encode


@pytest.fixture(scope="module")
def llama_pair(fixtures_dir: Path) -> tuple[Callable[[str], list[int]], Callable[[str], list[int]], list[str]]:
    """Ours, the library's, and the texts of the tokens, on the recorded vocabulary."""
    recorded = json.loads(lzma.decompress((fixtures_dir / "tokenizer" / "llama-spm.json.xz").read_bytes()))
    n = recorded["n_vocab"]
    tokens, types, scores = [f"\ufdd0{i}" for i in range(n)], [NORMAL] * n, [0.0] * n
    for field, values in (("tokens", tokens), ("types", types), ("scores", scores)):
        for i, value in recorded[field].items():
            values[int(i)] = value
    known = [tokens[int(i)] for i in recorded["tokens"] if types[int(i)] == NORMAL]
    return spm(tokens, types, scores), oracle(tokens, types, scores), known


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_real_vocabulary(
    llama_pair: tuple[Callable[[str], list[int]], Callable[[str], list[int]], list[str]], data: st.DataObject
) -> None:
    ours, theirs, known = llama_pair
    parts = st.one_of(st.sampled_from(known), st.text(max_size=8), st.text("ab ▁\n.-=<>", max_size=12))
    text = "".join(data.draw(st.lists(parts, max_size=30)))
    assert ours(text) == theirs(text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("run", ["a", " ", "\n", "ab", "▁a", "中", "🦙", "= ", ">  "])
def test_long_runs(
    llama_pair: tuple[Callable[[str], list[int]], Callable[[str], list[int]], list[str]], run: str
) -> None:
    ours, theirs, _ = llama_pair
    text = run * (100_000 // len(run))
    assert ours(text) == theirs(text)


# ------------------------------------------------------------------------- its parts


@given(texts=st.lists(st.text("a>]^-▁", max_size=5)), text=st.text("ab>]^-▁ \n", max_size=40))
def test_words_are_cut_where_no_token_reaches_across(texts: list[str], text: str) -> None:
    before = characters_before_spaces(token.encode() for token in texts)
    words = splitter_at_spaces(before)(text)
    assert "".join(words) == text and all(words)
    inside = {first for token in texts for first, second in itertools.pairwise(token) if second == "▁"}
    for left, right in itertools.pairwise(words):
        assert right[0] == "▁" and left[-1] not in inside | {"▁"}
    for word in words:
        cuts = [first for first, second in itertools.pairwise(word) if second == "▁"]
        assert set(cuts) <= inside | {"▁"}


@given(word=st.text("ab", min_size=2, max_size=3 * LONG_WORD), ranks=st.dictionaries(st.text("ab"), st.integers(0, 3)))
@settings(max_examples=200, deadline=None)
def test_ties_go_to_the_left(word: str, ranks: dict[str, int]) -> None:
    merger = PairMerger("{}{}".format, Remembered(lambda pair: ranks.get(pair, NO_RANK), 4), lambda pair, rank: pair)
    parts = list(word)
    while found := [(ranks[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in ranks]:
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    assert merger.merge(list(word)) == parts


def test_what_is_remembered_is_bounded_and_right_in_threads() -> None:
    squares = Remembered(lambda number: number * number, 10)
    wrong: list[int] = []

    def ask() -> None:
        wrong.extend(number for number in [*range(50)] * 200 if squares[number] != number * number)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(squares) <= 14


def test_a_symbol_that_is_none_is_in_no_pair(make_tokenizer: Make) -> None:
    """é has no token; with the number beyond all others its pair would be that of the next token."""
    tokenizer = make_tokenizer(["a", "b", "ba"], merges=["b a"])
    assert tokenizer.encode("aéa") == [0, 0]


def test_a_vocabulary_without_space_prefix(make_tokenizer: Make) -> None:
    tokens, types = ["<unk>", "▁", "a"], [UNKNOWN, NORMAL, NORMAL]
    prefixed, plain = (
        make_tokenizer(tokens, types, scores=[0.0] * 3, model="llama", add_space_prefix=flag) for flag in (True, False)
    )
    assert prefixed.encode("a", add_special=False) == [1, 2] and plain.encode("a", add_special=False) == [2]

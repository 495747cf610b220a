"""The tokenizer models against plain re-statements of their algorithm and against the tokenizers library."""

from __future__ import annotations

import itertools
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from localllm.tokenizer import StreamDecoder, Tokenizer
from localllm.tokenizer.bpe import BPE, BYTE_SPELLING, build_merges, decode_spelling
from localllm.tokenizer.merging import LONG_WORD
from localllm.tokenizer.pretokenizers import PRE_TOKENIZERS, _digits_from_the_right
from localllm.tokenizer.texts import Buckets, TokenTexts, hash_texts, token_starts

Make = Callable[..., Tokenizer]
Published = Callable[[str], Tokenizer]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
FAMILIES = sorted({id(family): name for name, family in PRE_TOKENIZERS.items()}.values())
TEXTS = st.text(
    st.one_of(
        st.sampled_from("aAzZéß ▁\t\n\r\u3000'stmdlrve09١５.,!?/<|>#()中文한ア🦙\u0301\u0915\u093f\u200d\x00\x85"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)
RUNS = ["a", "A", "é", "中", "क\u093f", "1", ".", "!", " ", "\n", "\t", "\r\n", "'s", "_", "🦙", "a ", " .", "<|", "x1"]


@pytest.mark.parametrize("name", FAMILIES)
class TestPreTokenizers:
    @given(text=TEXTS)
    @settings(max_examples=30, deadline=None)
    def test_words_make_the_text(self, name: str, text: str) -> None:
        words = PRE_TOKENIZERS[name].splitter()(text)
        if name == "mmbert":
            return  # it may add a ▁
        assert "".join(words) == text and all(words)

    @pytest.mark.timeout(60)
    def test_long_runs(self, name: str) -> None:
        split = PRE_TOKENIZERS[name].splitter()
        for run in RUNS:
            text = run * (20_000 // len(run))
            assert sum(map(len, split(text))) >= len(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1234567", ["1", "234", "567"]),
        ("123456", ["123", "456"]),
        ("a12b3456c", ["a", "12", "b", "3", "456", "c"]),
        ("", []),
        ("abc", ["abc"]),
    ],
)
def test_digits_from_the_right(text: str, words: list[str]) -> None:
    assert _digits_from_the_right(text) == words


def test_digits_before_a_letter_are_left_alone() -> None:
    assert _digits_from_the_right("1234 5678x", word_follows=True) == ["1", "234", " 5678x"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I'm  12ab!\n\n x", ["I", "'m", " ", " 12", "ab", "!", "\n\n", " x"]),
        ("llama-bpe", "I'LL 12345\n\n  x", ["I", "'LL", " ", "123", "45", "\n\n", " ", " x"]),
        ("qwen2", "a 12", ["a", " ", "1", "2"]),
        ("starcoder", "a 12", ["a", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld's //\n", ["Hello", "World's", " //\n"]),
        ("tekken", "HelloWorld's 12", ["Hello", "World", "'s", " ", "1", "2"]),
        ("deepseek-v3", "漢字abc 1234", ["漢字", "abc", " ", "123", "4"]),
        ("falcon", "a1234,b", ["a", "123", "4", ",", "b"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
        ("kimi-k2", "漢字abcDef", ["漢字", "abc", "Def"]),
        ("tiny_aya", "x 1234567", ["x", " ", "1", "234", "567"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("mmbert", "a▁b", ["▁a", "▁b"]),
        ("qwen35", "क\u093fक 1", ["क\u093fक", " ", "1"]),
    ],
)
def test_families(name: str, text: str, words: list[str]) -> None:
    assert PRE_TOKENIZERS[name].splitter()(text) == words


@pytest.fixture(scope="module")
def gpt2_pair(published_tokenizer: Published, fixtures_dir: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Ours, and the tokenizers library's, on the same reduced GPT-2 vocabulary."""
    recorded = json.loads(lzma.decompress((fixtures_dir / "tokenizer" / "gpt-2.json.xz").read_bytes()))
    vocab = {text: int(i) for i, text in recorded["tokens"].items()}
    merges = [tuple(merge.split(" ", 1)) for merge in recorded["merges"]]
    other = tokenizers.Tokenizer(models.BPE(vocab, [m for m in merges if m[0] in vocab and m[1] in vocab]))
    other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    other.decoder = decoders.ByteLevel()
    return published_tokenizer("gpt-2"), other


class TestBytePairs:
    @given(text=TEXTS)
    @settings(max_examples=200, deadline=None)
    def test_ids_of_the_tokenizers_library(self, gpt2_pair: tuple[Tokenizer, tokenizers.Tokenizer], text: str) -> None:
        ours, other = gpt2_pair
        ids = ours.encode(text, parse_special=False)
        assert ids == other.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == text

    @given(word=st.text("ab", min_size=LONG_WORD - 2, max_size=3 * LONG_WORD))
    @settings(max_examples=60, deadline=None)
    def test_long_words_merge_as_short_ones(self, word: str) -> None:
        merges = ["a a", "b a", "aa b", "ba aab", "a b", "aa aa", "ab ba", "b b"]
        assert _merge_with(merges, word) == _merge_plainly(merges, word)


def _merge_with(merges: list[str], word: str) -> list[str]:
    texts = list(dict.fromkeys([*BYTE_SPELLING, *(merge.replace(" ", "") for merge in merges)]))
    raw_texts = [text.encode() for text in texts]
    body = b"".join(len(text).to_bytes(8, "little") + text for text in raw_texts)
    table = TokenTexts(body, token_starts(body, len(texts)), Buckets(*Buckets.group(hash_texts(raw_texts))))
    bpe = BPE(table, build_merges(raw_texts, [merge.encode() for merge in merges]), PRE_TOKENIZERS["gpt-2"], bool)
    return [texts[token] for token in bpe.encode(word)]


def _merge_plainly(merges: list[str], word: str) -> list[str]:
    """Least rank first, leftmost of equals, nothing clever."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    parts = list(word)
    while True:
        pairs = [(ranks[a, b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if (a, b) in ranks]
        if not pairs:
            return parts
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


class TestMergesOutsideTheVocabulary:
    def test_unknown_bytes_are_dropped(self, make_tokenizer: Make) -> None:
        tokenizer = make_tokenizer(["a", "b"], merges=["a b"])
        assert tokenizer.encode("aéb") == [0, 1]

    def test_a_merge_without_token_falls_apart_into_bytes(self, make_tokenizer: Make) -> None:
        tokenizer = make_tokenizer(["a", "b", "c", "bc"], merges=["b c", "a bc", "zz a"])
        assert tokenizer.encode("bc abc") == [3, 0, 1, 2]

    def test_a_pair_listed_twice_keeps_its_first_rank(self, make_tokenizer: Make) -> None:
        tokenizer = make_tokenizer(["a", "b", "c", "ab", "bc"], merges=["a b", "b c", "a b", "broken"])
        assert tokenizer.encode("abc") == [3, 2]

    def test_whole_words_before_merges_where_the_family_says_so(self, make_tokenizer: Make) -> None:
        tokens = ["a", "b", "c", "ab", "abc"]
        assert make_tokenizer(tokens, merges=["a b"], pre="gpt-2").encode("abc") == [3, 2]
        assert make_tokenizer(tokens, merges=["a b"], pre="llama-bpe").encode("abc") == [4]


class TestCharacterPairs:
    """gemma4: characters, ▁ and byte tokens instead of GPT-2's spelling."""

    TOKENS = ("▁", "a", "b", "▁a", "\n", "\n\n", *(f"<0x{b:02X}>" for b in range(256)))
    TYPES = (NORMAL,) * 6 + (BYTE,) * 256

    def test_spaces_newlines_and_bytes(self, make_tokenizer: Make) -> None:
        tokenizer = make_tokenizer(list(self.TOKENS), list(self.TYPES), merges=["▁ a"], model="gemma4", bos_token_id=1)
        assert tokenizer.encode("a ab\n\né", add_special=False) == [1, 3, 2, 5, 6 + 0xC3, 6 + 0xA9]
        assert tokenizer.decode(tokenizer.encode("a ab\n\né🦙 ", add_special=False)) == "a ab\n\né🦙 "
        assert tokenizer.add_bos

    def test_a_merge_across_words(self, make_tokenizer: Make) -> None:
        tokenizer = make_tokenizer(["▁", "a", "a▁", "a▁a"], merges=["a ▁", "a▁ a"], model="gemma4", bos_token_id=1)
        assert tokenizer.encode("a a", add_special=False) == [3]


class TestSentencePiece:
    PIECES = ("▁", "a", "b", "▁a", "ab", "▁ab", "ba", "aba", "▁▁", "bb")
    SCORES = (-1.0, -2.0, -3.0, -5.0, -4.0, -9.0, -4.0, -7.0, -6.0, -1000.0)

    @given(text=st.text("ab \n", max_size=40))
    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_merges_by_score(self, spm_tokenizer: Tokenizer, text: str) -> None:
        assert spm_tokenizer.encode(text, add_special=False) == self.merge(" " + text if text else "")

    def merge(self, text: str) -> list[int]:
        """Highest score first, leftmost of equals; what is left over becomes bytes."""
        parts = list(text.replace(" ", "▁"))
        scores = dict(zip(self.PIECES, self.SCORES, strict=True))
        while True:
            pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
            if not pairs:
                break
            _, i = min(pairs)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids = []
        for part in parts:
            ids += [257 + self.PIECES.index(part)] if part in scores else [1 + byte for byte in part.encode()]
        return ids

    @pytest.fixture
    def spm_tokenizer(self, make_tokenizer: Make) -> Tokenizer:
        tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *self.PIECES]
        types = [UNKNOWN] + [BYTE] * 256 + [NORMAL] * 8 + [USER_DEFINED, UNUSED]
        scores = [0.0] * 257 + list(self.SCORES)
        return make_tokenizer(tokens, types, scores=scores, model="llama")

    def test_user_defined_and_unused_tokens_merge_by_score_too(self, spm_tokenizer: Tokenizer) -> None:
        assert spm_tokenizer.encode(" bb", add_special=False) == [257 + 8, 257 + 9]

    def test_without_byte_tokens_the_rest_is_unknown(self, make_tokenizer: Make) -> None:
        tokenizer = make_tokenizer(["<unk>", "▁", "a"], [UNKNOWN, NORMAL, NORMAL], scores=[0.0] * 3, model="llama")
        assert tokenizer.encode("aé", add_special=False) == [1, 2, 0]

    def test_very_long_token(self, make_tokenizer: Make) -> None:
        tokens = ["<unk>", "▁", "a", "a" * 128, *("a" * 2**i for i in range(1, 7))]
        tokenizer = make_tokenizer(tokens, [UNKNOWN] + [NORMAL] * 9, scores=[0.0] * 10, model="llama")
        assert tokenizer.encode("a" * 128, add_special=False) == [1, 3]


BERT_WORDS = [
    *"aAéß_<|.中文한アकάИעΩİıΣςǅẞ½Ⅷ²°€$+=~`^“﷽ﬁ﹏￥🦙豈\u093e\u0301\u200d\u00a0\u3000\x85\x0b\x1c\u2028\x01\x7f\ufeff\u00ad\ufffd\ue000",
    *("hello", "12", " ", "  ", "\t", "\r\n", "'s", "!?", "\U00020000", "a" * 100, "\u00e9" * 101),
]
BERT_TEXTS = st.lists(st.sampled_from(BERT_WORDS), max_size=12).map("".join)


class TestWordPieces:
    @given(text=BERT_TEXTS)
    @settings(max_examples=300, deadline=None)
    def test_ids_of_the_tokenizers_library(self, bert_pair: tuple[Tokenizer, tokenizers.Tokenizer], text: str) -> None:
        ours, other = bert_pair
        expected = other.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False, parse_special=False) == expected


@pytest.fixture(scope="module")
def bert_pair(published_tokenizer: Published, fixtures_dir: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Ours, and the tokenizers library's, on the same reduced BERT vocabulary."""
    recorded = json.loads(lzma.decompress((fixtures_dir / "tokenizer" / "bert-bge.json.xz").read_bytes()))
    special = {int(i) for i, kind in recorded["types"].items() if kind != NORMAL} | {100}
    vocab = {}
    for i, text in recorded["tokens"].items():
        starts_word = text.startswith("▁")
        vocab[text[1:] if starts_word else text if int(i) in special else f"##{text}"] = int(i)
    other = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    other.normalizer = normalizers.BertNormalizer(lowercase=True)
    other.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return published_tokenizer("bert-bge"), other


class TestLongRuns:
    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "llama-spm", "gemma-4"])
    @pytest.mark.parametrize("run", ["a", ".", "\n", " ", "🦙", "</s>"])
    def test_fifty_thousand_characters(self, published_tokenizer: Published, name: str, run: str) -> None:
        text = run * (50_000 // len(run))
        tokenizer = published_tokenizer(name)
        assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "gemma-4", "phi-3"])
class TestAnyText:
    @given(text=TEXTS)
    @settings(max_examples=60, deadline=None)
    def test_streaming_gives_the_same_text(self, published_tokenizer: Published, name: str, text: str) -> None:
        tokenizer = published_tokenizer(name)
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        decoder = StreamDecoder(tokenizer)
        streamed = "".join(decoder.feed(token) for token in ids) + decoder.flush()
        assert streamed.removeprefix(" " if tokenizer.add_space_prefix else "") == tokenizer.decode(ids) == text


def test_spelling_of_bytes() -> None:
    assert decode_spelling("".join(BYTE_SPELLING)) == bytes(range(256))
    assert decode_spelling("Ġthe") == b" the" and decode_spelling("a b") == b"a b"

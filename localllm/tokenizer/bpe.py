"""Byte-pair encoding from the merges of a GGUF, with llama.cpp's ids; special tokens and BOS are not its business.

The merges live in flat arrays that a cache can hold, so that loading 280,000 of them takes milliseconds: a pair of
symbols is found by hashing, and a dictionary remembers the pairs met so far. Words met before are remembered too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localllm.tokenizer.merging import LONG_WORD, MAX_PAIRS, MAX_WORDS, NO_RANK, PairMerger, Remembered
from localllm.tokenizer.pretokenizers import PreTokenizer
from localllm.tokenizer.spaces import SPACE, characters_before_spaces, splitter_at_spaces
from localllm.tokenizer.texts import Buckets, TokenTexts, U32Array


def _byte_spelling() -> list[str]:
    """GPT-2's printable character for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b if b in printable else next(others)) for b in range(256)]


NO_SYMBOL = (1 << 32) - 1  # of a text that is no symbol: it is in no pair
BYTE_SPELLING = _byte_spelling()
BYTE_OF_CHARACTER = {ord(character): byte for byte, character in enumerate(BYTE_SPELLING)}


def decode_spelling(text: str) -> bytes:
    """The bytes a token in GPT-2's spelling stands for; a text with other characters stands for itself."""
    try:
        return bytes([BYTE_OF_CHARACTER[ord(character)] for character in text])
    except KeyError:
        return text.encode()


@dataclass(frozen=True)
class Merges:
    """Merges in the order of their rank.

    `left`, `right`, `merged` are uint32 [n_merges] of symbols; `starts` and `rows` group the pairs by hash (`Buckets`).
    A symbol below n_vocab is a token. The others have their texts in `extra`: parts of merges that are no tokens.
    `before_spaces`: the characters that some merge joins to a ▁ after them (`characters_before_spaces`).
    """

    left: U32Array
    right: U32Array
    merged: U32Array
    starts: U32Array
    rows: U32Array
    extra: tuple[bytes, ...]
    before_spaces: str

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """For the cache."""
        blob = b"".join(len(text).to_bytes(4, "little") + text for text in self.extra)
        return {
            **{name: getattr(self, name) for name in ("left", "right", "merged", "starts", "rows")},
            "extra": np.frombuffer(blob, np.uint8),
            "before_spaces": np.frombuffer(self.before_spaces.encode(), np.uint8),
        }

    @staticmethod
    def from_arrays(arrays: dict[str, npt.NDArray[Any]]) -> Merges:
        """The reverse of `to_arrays`."""
        blob, extra = arrays["extra"].tobytes(), []
        while blob:
            end = 4 + int.from_bytes(blob[:4], "little")
            extra.append(blob[4:end])
            blob = blob[end:]
        plain = {name: arrays[name].view(np.uint32) for name in ("left", "right", "merged", "starts", "rows")}
        return Merges(**plain, extra=tuple(extra), before_spaces=arrays["before_spaces"].tobytes().decode())


def _pair_hash(left: int, right: int) -> int:
    return (left * 0x9E3779B1 + right * 0x85EBCA77) >> 15 & 0xFFFFFFFF


def _pair_hashes(left: U32Array, right: U32Array) -> U32Array:
    mixed = left.astype(np.uint64) * np.uint64(0x9E3779B1) + right.astype(np.uint64) * np.uint64(0x85EBCA77)
    return (mixed >> np.uint64(15)).astype(np.uint32)


def build_merges(texts: Sequence[bytes], merges: Iterable[bytes]) -> Merges:
    """Resolve merges (`left right`, cut at the first space that is not the first byte) to symbols.

    A pair that is listed twice keeps its first rank; an entry without a space is never used.
    """
    symbols = {text: token for token, text in enumerate(texts)}
    extra: list[bytes] = []
    pairs, merged = [], []
    for merge in merges:
        cut = merge.find(b" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        whole_text = left + right
        try:
            first, second, whole = symbols[left], symbols[right], symbols[whole_text]
        except KeyError:
            if cut < 0:
                continue
            parts = (left, right, whole_text)
            for part in parts:
                if part not in symbols:
                    symbols[part] = len(texts) + len(extra)
                    extra.append(part)
            first, second, whole = (symbols[part] for part in parts)
        pairs.append(first << 32 | second)
        merged.append(whole)
    return _indexed(np.array(pairs, np.uint64), np.array(merged, np.uint32), [*texts, *extra], len(texts))


def _indexed(pairs: npt.NDArray[np.uint64], merged: U32Array, everything: Sequence[bytes], n_vocab: int) -> Merges:
    keep = np.sort(np.unique(pairs, return_index=True)[1])
    pairs, merged = pairs[keep], merged[keep]
    left, right = (pairs >> np.uint64(32)).astype(np.uint32), pairs.astype(np.uint32)
    starts, rows = Buckets.group(_pair_hashes(left, right))
    before_spaces = characters_before_spaces(everything[symbol] for symbol in np.unique(merged).tolist())
    return Merges(left, right, merged, starts, rows, tuple(everything[n_vocab:]), before_spaces)


def _pair(left: int, right: int) -> int:
    return left << 32 | right


class _PairRanks:
    """Finds the rank of a pair, `left << 32 | right`, among the merges."""

    def __init__(self, merges: Merges) -> None:
        self._buckets = Buckets(merges.starts, merges.rows)
        self._left, self._right = merges.left.data, merges.right.data

    def __call__(self, pair: int) -> int:
        left, right = pair >> 32, pair & 0xFFFFFFFF
        buckets = self._buckets
        bucket = _pair_hash(left, right) & buckets.mask
        for i in range(buckets.starts[bucket], buckets.starts[bucket + 1]):
            row = buckets.rows[i]
            if self._left[row] == left and self._right[row] == right:
                return row
        return NO_RANK


class BPE:
    """The tokenizer model; `encode` takes text without special tokens.

    `findable` says which tokens text may become in one piece (for `ignore_merges` and single characters).
    """

    def __init__(
        self, texts: TokenTexts, merges: Merges, family: PreTokenizer, findable: Callable[[int], bool]
    ) -> None:
        self._texts, self._family, self._findable = texts, family, findable
        self._n_vocab = len(texts)
        merged = merges.merged.data
        ranks = Remembered(_PairRanks(merges), MAX_PAIRS)
        self._merger = PairMerger(_pair, ranks, lambda pair, rank: merged[rank])
        self._extra = {text: self._n_vocab + i for i, text in enumerate(merges.extra)}
        self._extra_texts = merges.extra
        self._split = family.splitter()
        self._words = Remembered(self._encode_word, MAX_WORDS)
        self._cut_at_spaces = splitter_at_spaces(merges.before_spaces)
        self._byte_symbols = [self._symbol(spelling) for spelling in BYTE_SPELLING] if family.byte_level else []
        self._character_symbols: dict[str, int | None] = {}

    def encode(self, text: str, after_special: bool = True) -> list[int]:
        """The ids of `text`. Bytes for which the vocabulary has no token are dropped, as in llama.cpp."""
        ids: list[int] = []
        words = self._words
        for word in self._cut(text):
            ids += words[word] if len(word) <= LONG_WORD else self._encode_word(word)
        return ids

    def _cut(self, text: str) -> Iterable[str]:
        if self._family.byte_level:
            return self._split(text)
        stretches = self._split(text.replace(" ", SPACE))
        return [word for stretch in stretches for word in self._cut_at_spaces(stretch)]

    def _encode_word(self, word: str) -> list[int]:
        if not self._family.byte_level:
            return self._encode_characters(word)
        raw = word.encode()
        if self._family.ignore_merges:
            spelled = "".join([BYTE_SPELLING[byte] for byte in raw])
            token = self._texts.find(spelled.encode(), self._findable)
            if token is not None:
                return [token]
        symbols = self._byte_symbols
        return self._tokens(self._merger.merge([symbols[byte] for byte in raw]))

    def _encode_characters(self, word: str) -> list[int]:
        if not word.strip("\n"):
            token = self._texts.find(word.encode(), self._findable)
            if token is not None:
                return [token]
        ids: list[int] = []
        stretch: list[int] = []
        for character in word:
            symbol = self._character_symbol(character)
            if symbol is not None:
                stretch.append(symbol)
                continue
            ids += self._tokens(
                self._merger.merge(stretch)
            )  # nothing merges with a character that is not in the vocabulary
            stretch = []
            ids += self._bytes(character.encode())
        return ids + self._tokens(self._merger.merge(stretch))

    def _character_symbol(self, character: str) -> int | None:
        if character not in self._character_symbols:
            symbol = self._symbol(character)
            self._character_symbols[character] = symbol if symbol < NO_SYMBOL else None
        return self._character_symbols[character]

    def _symbol(self, text: str) -> int:
        raw = text.encode()
        token = self._texts.find(raw)
        return self._extra.get(raw, NO_SYMBOL) if token is None else token

    def _tokens(self, symbols: list[int]) -> list[int]:
        """Symbols that are no tokens replaced by the tokens of their bytes."""
        n_vocab = self._n_vocab
        if all(symbol < n_vocab for symbol in symbols):
            return symbols
        ids = []
        for symbol in symbols:
            if symbol < n_vocab:
                ids.append(symbol)
            elif symbol < NO_SYMBOL:
                ids += self._bytes(self._extra_texts[symbol - n_vocab])
        return ids

    def _bytes(self, raw: bytes) -> Iterator[int]:
        for byte in raw:
            spelling = bytes([byte]) if self._family.byte_level else b"<0x%02X>" % byte
            token = self._texts.find(spelling)
            if token is not None:
                yield token

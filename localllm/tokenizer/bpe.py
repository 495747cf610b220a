"""Byte-pair encoding from the merges of a GGUF, with llama.cpp's ids; special tokens and BOS are not its business.

The merges live in flat arrays that a cache can hold, so that loading 280,000 of them takes milliseconds: a pair of
symbols is found by hashing, and a dictionary remembers the pairs met so far. Words met before are remembered too.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localllm.tokenizer.pretokenizers import PreTokenizer
from localllm.tokenizer.texts import Buckets, TokenTexts, U32Array

NO_RANK = 1 << 32
LONG_WORD = 48  # symbols; beyond it a heap is faster than looking for the least rank again and again
MAX_REMEMBERED = 1 << 16
SPACE = "\u2581"


def _byte_spelling() -> list[str]:
    """GPT-2's printable character for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b if b in printable else next(others)) for b in range(256)]


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
    `crosses_words`: some merge joins a ▁ to something before it that is not ▁.
    """

    left: U32Array
    right: U32Array
    merged: U32Array
    starts: U32Array
    rows: U32Array
    extra: tuple[bytes, ...]
    crosses_words: bool

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """For the cache."""
        blob = b"".join(len(text).to_bytes(4, "little") + text for text in self.extra)
        return {
            **{name: getattr(self, name) for name in ("left", "right", "merged", "starts", "rows")},
            "extra": np.frombuffer(blob, np.uint8),
            "crosses_words": np.array([self.crosses_words], np.uint8),
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
        return Merges(**plain, extra=tuple(extra), crosses_words=bool(arrays["crosses_words"][0]))


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
    space = SPACE.encode()
    results = [everything[symbol] for symbol in np.unique(merged).tolist()]
    crosses_words = any(space in text and space in text.lstrip(space) for text in results)
    return Merges(left, right, merged, starts, rows, tuple(everything[n_vocab:]), crosses_words)


class _PairRanks(dict[int, int]):
    """Rank by `left << 32 | right`, NO_RANK where the two do not merge; filled as pairs are asked for."""

    def __init__(self, merges: Merges) -> None:
        self._buckets = Buckets(merges.starts, merges.rows)
        self._left = merges.left.data
        self._right = merges.right.data

    def __missing__(self, pair: int) -> int:
        if len(self) >= MAX_REMEMBERED * 4:
            self.clear()
        left, right = pair >> 32, pair & 0xFFFFFFFF
        buckets = self._buckets
        bucket = _pair_hash(left, right) & buckets.mask
        rank = NO_RANK
        for i in range(buckets.starts[bucket], buckets.starts[bucket + 1]):
            row = buckets.rows[i]
            if self._left[row] == left and self._right[row] == right:
                rank = row
                break
        self[pair] = rank
        return rank


class BPE:
    """The tokenizer model; `encode` takes text without special tokens.

    `findable` says which tokens text may become in one piece (for `ignore_merges` and single characters).
    """

    def __init__(
        self, texts: TokenTexts, merges: Merges, family: PreTokenizer, findable: Callable[[int], bool]
    ) -> None:
        self._texts, self._family, self._findable = texts, family, findable
        self._n_vocab = len(texts)
        self._ranks = _PairRanks(merges)
        self._merged = merges.merged.data
        self._extra = {text: self._n_vocab + i for i, text in enumerate(merges.extra)}
        self._extra_texts = merges.extra
        self._split = family.splitter()
        self._words: dict[str, list[int]] = {}
        self._crosses_words = merges.crosses_words
        self._byte_symbols = [self._symbol(spelling) for spelling in BYTE_SPELLING] if family.byte_level else []
        self._character_symbols: dict[str, int | None] = {}

    def encode(self, text: str, after_special: bool = True) -> list[int]:
        """The ids of `text`. Bytes for which the vocabulary has no token are dropped, as in llama.cpp."""
        ids: list[int] = []
        words = self._words
        for word in self._cut(text):
            known = words.get(word)
            if known is None:
                known = self._encode_word(word)
                if len(word) <= LONG_WORD:
                    if len(words) >= MAX_REMEMBERED:
                        words.clear()
                    words[word] = known
            ids += known
        return ids

    def _cut(self, text: str) -> Iterable[str]:
        if self._family.byte_level:
            return self._split(text)
        words = self._split(text.replace(" ", SPACE))
        return words if self._crosses_words else _at_spaces(words)

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
        return self._tokens(self._merge([symbols[byte] for byte in raw]))

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
            ids += self._tokens(self._merge(stretch))  # nothing merges with a character that is not in the vocabulary
            stretch = []
            ids += self._bytes(character.encode())
        return ids + self._tokens(self._merge(stretch))

    def _character_symbol(self, character: str) -> int | None:
        if character not in self._character_symbols:
            symbol = self._symbol(character)
            self._character_symbols[character] = symbol if symbol < NO_RANK else None
        return self._character_symbols[character]

    def _symbol(self, text: str) -> int:
        raw = text.encode()
        token = self._texts.find(raw)
        return self._extra.get(raw, NO_RANK) if token is None else token

    def _merge(self, symbols: list[int]) -> list[int]:
        """Merge in place, the pair of least rank first, of equal ones the leftmost."""
        if len(symbols) > LONG_WORD:
            return self._merge_long(symbols)
        pair_ranks, merged = self._ranks, self._merged
        ranks = [pair_ranks[left << 32 | right] for left, right in itertools.pairwise(symbols)]
        while ranks:
            rank = min(ranks)
            if rank == NO_RANK:
                break
            i = ranks.index(rank)
            symbols[i : i + 2] = [merged[rank]]
            del ranks[i]
            if i:
                ranks[i - 1] = pair_ranks[symbols[i - 1] << 32 | symbols[i]]
            if i < len(ranks):
                ranks[i] = pair_ranks[symbols[i] << 32 | symbols[i + 1]]
        return symbols

    def _merge_long(self, symbols: list[int]) -> list[int]:
        """As `_merge`, in n log n: a heap of (rank, position), entries that no longer hold are skipped."""
        pair_ranks, merged = self._ranks, self._merged
        n = len(symbols)
        following, previous = list(range(1, n + 1)), list(range(-1, n - 1))
        heap = []
        for i in range(n - 1):
            rank = pair_ranks[symbols[i] << 32 | symbols[i + 1]]
            if rank != NO_RANK:
                heap.append((rank, i))
        heapq.heapify(heap)
        while heap:
            rank, i = heapq.heappop(heap)
            right = following[i]
            if symbols[i] < 0 or right >= n or pair_ranks[symbols[i] << 32 | symbols[right]] != rank:
                continue
            symbols[i], symbols[right] = merged[rank], -1
            following[i] = after = following[right]
            if after < n:
                previous[after] = i
            for left, beside in ((previous[i], i), (i, after)):
                if left >= 0 and beside < n:
                    rank = pair_ranks[symbols[left] << 32 | symbols[beside]]
                    if rank != NO_RANK:
                        heapq.heappush(heap, (rank, left))
        return [symbol for symbol in symbols if symbol >= 0]

    def _tokens(self, symbols: list[int]) -> list[int]:
        """Symbols that are no tokens replaced by the tokens of their bytes."""
        n_vocab = self._n_vocab
        if all(symbol < n_vocab for symbol in symbols):
            return symbols
        ids = []
        for symbol in symbols:
            if symbol < n_vocab:
                ids.append(symbol)
            elif symbol < NO_RANK:
                ids += self._bytes(self._extra_texts[symbol - n_vocab])
        return ids

    def _bytes(self, raw: bytes) -> Iterator[int]:
        for byte in raw:
            spelling = bytes([byte]) if self._family.byte_level else b"<0x%02X>" % byte
            token = self._texts.find(spelling)
            if token is not None:
                yield token


def _at_spaces(words: Iterable[str]) -> Iterator[str]:
    """Cut before each ▁ that follows another character: where no merge crosses there, the ids stay the same."""
    for word in words:
        start = 0
        at = word.find(SPACE, 1)
        while at > 0:
            if word[at - 1] != SPACE:
                yield word[start:at]
                start = at
            at = word.find(SPACE, at + 1)
        yield word[start:]

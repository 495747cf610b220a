"""SentencePiece's BPE from the tokens and scores of a GGUF, with llama.cpp's ids; special tokens are not its business.

Characters are merged by the score of the token that two neighbours spell together, the highest first, whatever the
token's type, but for control, unknown and byte tokens, which no text becomes. A character that is no token may still
be part of one; what is left of it becomes the tokens of its bytes where the vocabulary has all 256, else it is unknown.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localllm.tokenizer.merging import LONG_WORD, MAX_PAIRS, MAX_WORDS, NO_RANK, PairMerger, Remembered
from localllm.tokenizer.spaces import SPACE, characters_before_spaces, splitter_at_spaces
from localllm.tokenizer.special import BYTE, CONTROL, UNKNOWN
from localllm.tokenizer.texts import TokenTexts, U32Array

HIDDEN = (1 << 32) - 1
UNKNOWN_CHARACTER = -1
BETWEEN = "\ud800"  # a surrogate, which no decoded text holds

U64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Scores:
    """What merging must know of the tokens.

    `ranks` is uint32 [n_vocab]: the place of each token's score among all scores, 0 the highest, and HIDDEN for what
    text does not become. `bytes` is uint32 [256], or [0] where some byte has no token. `before_spaces` is as in
    `splitter_at_spaces`, `bigrams` as `bigrams_of` the tokens that text becomes, `longest` the bytes of the longest.
    """

    ranks: U32Array
    bytes: U32Array
    before_spaces: str
    bigrams: U64Array
    longest: int

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """For the cache."""
        return {
            "ranks": self.ranks,
            "bytes": self.bytes,
            "before_spaces": np.frombuffer(self.before_spaces.encode(), np.uint8),
            "bigrams": self.bigrams,
            "longest": np.array([self.longest], np.uint32),
        }

    @staticmethod
    def from_arrays(arrays: dict[str, npt.NDArray[Any]]) -> Scores:
        """The reverse of `to_arrays`."""
        before_spaces = arrays["before_spaces"].tobytes().decode()
        longest = int(arrays["longest"][0])
        return Scores(arrays["ranks"], arrays["bytes"], before_spaces, arrays["bigrams"], longest)


def rank_tokens(texts: Sequence[bytes], scores: npt.NDArray[np.float32], types: npt.NDArray[np.int32]) -> Scores:
    """From texts, scores and types, each [n_vocab]. Equal scores have equal ranks, and no score is the lowest."""
    ranks = np.unique(-scores.astype(np.float64), return_inverse=True)[1].astype(np.uint32).reshape(-1)
    ranks[np.isin(types, (CONTROL, UNKNOWN, BYTE))] = HIDDEN
    shown = [texts[token] for token in np.flatnonzero(ranks != HIDDEN).tolist()]
    byte_tokens = {texts[token]: token for token in np.flatnonzero(types == BYTE).tolist()}
    found = [byte_tokens[name] for byte in range(256) if (name := b"<0x%02X>" % byte) in byte_tokens]
    byte_ids = np.array(found if len(found) == 256 else [], np.uint32)
    longest = max(map(len, shown), default=0)
    return Scores(ranks, byte_ids, characters_before_spaces(shown), bigrams_of(shown), longest)


def bigrams_of(texts: Sequence[bytes]) -> U64Array:
    """Characters that stand side by side in some text, first << 32 | second, ascending, uint64 [n]."""
    whole = BETWEEN.join([text.decode("utf-8", "replace") for text in texts])
    codes = np.frombuffer(whole.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    apart = codes == ord(BETWEEN)
    pairs = codes[:-1] << np.uint64(32) | codes[1:]
    return np.unique(pairs[~(apart[:-1] | apart[1:])])


class SPM:
    """The tokenizer model; `encode` takes text without special tokens. Of tokens with the same text, the last is the
    one that text becomes."""

    def __init__(self, texts: TokenTexts, scores: Scores, add_space_prefix: bool, unk: int | None) -> None:
        self._texts, self._longest = texts, scores.longest
        self._ranks = scores.ranks.data
        self._bytes = scores.bytes.tolist()
        self._add_space_prefix = add_space_prefix
        self._unknown = [] if unk is None else [unk]
        self._bigrams = scores.bigrams.data
        self._cut = splitter_at_spaces(scores.before_spaces)
        # A symbol is its text: what two spell together is their pair, and what they become.
        self._merger = PairMerger(operator.add, Remembered(self._rank, MAX_PAIRS), lambda pair, rank: pair)
        self._symbols = Remembered(self._tokens, MAX_WORDS)
        self._is_inside = Remembered(self._find_bigram, MAX_WORDS)
        self._pieces = Remembered(self._encode_piece, MAX_WORDS)
        self._words = Remembered(self._encode_word, MAX_WORDS)

    def encode(self, text: str, after_special: bool = True) -> list[int]:
        """The ids of `text`. A text at the start or right after a special token gets a space before it."""
        if self._add_space_prefix and after_special:
            text = " " + text
        ids: list[int] = []
        words = self._words
        for word in self._cut(text.replace(" ", SPACE)):
            ids += words[word] if len(word) <= LONG_WORD else self._encode_word(word)
        return ids if self._bytes else self._with_unknown(ids)

    def _with_unknown(self, ids: list[int]) -> list[int]:
        """With the unknown token once for each run of characters that are none."""
        result: list[int] = []
        for is_unknown, run in itertools.groupby(ids, UNKNOWN_CHARACTER.__eq__):
            result += self._unknown if is_unknown else run
        return result

    def _encode_word(self, word: str) -> list[int]:
        """Cut where no token reaches across: the pieces are short, and the same ones come again and again."""
        is_inside = self._is_inside
        bigrams = map(operator.add, word, itertools.islice(word, 1, None))
        cuts = [i for i, bigram in enumerate(bigrams, 1) if not is_inside[bigram]]
        ids: list[int] = []
        for start, end in itertools.pairwise([0, *cuts, len(word)]):
            piece = word[start:end]
            ids += self._pieces[piece] if end - start <= LONG_WORD else self._encode_piece(piece)
        return ids

    def _encode_piece(self, piece: str) -> list[int]:
        tokens = self._symbols
        return [token for symbol in self._merger.merge(list(piece)) for token in tokens[symbol]]

    def _find_bigram(self, bigram: str) -> bool:
        key = ord(bigram[0]) << 32 | ord(bigram[1])
        at = bisect.bisect_left(self._bigrams, key)
        return at < len(self._bigrams) and self._bigrams[at] == key

    def _tokens(self, symbol: str) -> list[int]:
        token = self._find(symbol)
        if token is not None:
            return [token]
        return [self._bytes[byte] for byte in symbol.encode()] if self._bytes else [UNKNOWN_CHARACTER]

    def _rank(self, text: str) -> int:
        token = self._find(text)
        return NO_RANK if token is None else self._ranks[token]

    def _find(self, text: str) -> int | None:
        """The token that text becomes."""
        raw = text.encode()
        token = self._texts.find(raw) if len(raw) <= self._longest else None
        return None if token is None or self._ranks[token] == HIDDEN else token

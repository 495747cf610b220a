"""Makes a tokenizer from the metadata of a GGUF, and caches what is slow to compute; it encodes nothing itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localllm.errors import TokenizerError, UnsupportedModelError
from localllm.gguf.file import GGUFFile
from localllm.gguf.types import ValueType
from localllm.tokenizer import cache
from localllm.tokenizer.bpe import BPE, Merges, build_merges, decode_spelling
from localllm.tokenizer.partition import SpecialPartition
from localllm.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from localllm.tokenizer.special import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    SpecialTokens,
    find_special_tokens,
)
from localllm.tokenizer.spm import SPM, Scores, rank_tokens
from localllm.tokenizer.texts import Buckets, TokenTexts, hash_texts, split_strings, token_starts
from localllm.tokenizer.tokenizer import Tokenizer, TokenizerModel
from localllm.tokenizer.wordpiece import WordPiece

logger = logging.getLogger(__name__)

FORMAT = b"localllm-tokenizer-2"  # part of every cache key: raise it when a section changes its meaning
SUPPORTED_MODELS = ("bert", "gemma4", "gpt2", "llama")
PREFIX = "tokenizer.ggml."
MAX_TEXT_BYTES = 1 << 30

Arrays = dict[str, npt.NDArray[Any]]


def load_tokenizer(f: GGUFFile, cache_dir: Path | None = None) -> Tokenizer:
    """The tokenizer of a model. What is slow to compute is kept under `cache_dir`.

    The tokenizer does not need the file to stay open.

    Raises:
        UnsupportedModelError: a kind of tokenizer, or a pre-tokenizer, that is not known.
        TokenizerError: the vocabulary is missing or contradicts itself.
    """
    return _Loader(f, cache_dir).load()


class _Loader:
    """Reads the tokenizer of one file. `types` is corrected as special tokens are found."""

    def __init__(self, f: GGUFFile, cache_dir: Path | None) -> None:
        self.f = f
        self.cache_dir = cache_dir
        self.model = f.get(f"{PREFIX}model", str, default="")
        if self.model not in SUPPORTED_MODELS:
            raise UnsupportedModelError(
                f'{f.path}: unsupported tokenizer: "{self.model}" (supported: {", ".join(SUPPORTED_MODELS)})'
            )
        self.tokens = self._strings("tokens")
        self.n_vocab = self._count("tokens")
        if not self.n_vocab:
            raise TokenizerError(f"{f.path}: key {PREFIX + 'tokens'!r} is empty, expected a vocabulary")
        self.types = self._per_token("token_type", np.int32, NORMAL, ValueType.INT32, ValueType.UINT32)
        self.family = self._family() if self.model in ("gpt2", "gemma4") else None

    def load(self) -> Tokenizer:
        arrays = self._arrays()
        buckets = Buckets(arrays["text_buckets"], arrays["text_rows"])
        texts = TokenTexts(arrays["texts"].data, arrays["text_starts"], buckets)
        special = find_special_tokens(self.f, self.model, texts.find, self.types)
        return Tokenizer(
            texts,
            self._model(arrays, texts, special),
            special,
            self.types,
            self._partition(texts),
            _bytes_from_spelling if self.family is not None and self.family.byte_level else _words_from_spaces,
            first=special.bos if self._add_bos() else None,
            last=self._last(special),
            add_space_prefix=self._add_space_prefix(),
            suppress_ids=self._suppress_ids(),
        )

    def _flag(self, key: str, default: bool) -> bool:
        return self.f.get(PREFIX + key, bool, default=default)

    def _strings(self, key: str) -> memoryview:
        value = self.f.metadata.raw(PREFIX + key)
        if value is None or value.element_type is not ValueType.STRING:
            raise TokenizerError(f"{self.f.path}: missing key {PREFIX + key!r}, expected an array of strings")
        if value.n_bytes >= MAX_TEXT_BYTES:
            raise TokenizerError(
                f"{self.f.path}: key {PREFIX + key!r} has {value.n_bytes} bytes, expected less than {MAX_TEXT_BYTES}"
            )
        return value.view()

    def _count(self, key: str) -> int:
        value = self.f.metadata.raw(PREFIX + key)
        return 0 if value is None else len(value)

    def _per_token(self, key: str, dtype: type[np.generic], default: int, *kinds: ValueType) -> npt.NDArray[Any]:
        n_vocab = self.n_vocab
        value = self.f.metadata.raw(PREFIX + key)
        if value is None:
            return np.full(n_vocab, default, dtype)
        if value.element_type not in kinds or len(value) < n_vocab:
            raise TokenizerError(
                f"{self.f.path}: key {PREFIX + key!r} is an array of {len(value)} {value.element_type.name.lower()}, "
                f"expected {n_vocab} {kinds[0].name.lower()}, one for each token"
            )
        array: npt.NDArray[Any] = self.f.metadata[PREFIX + key][:n_vocab].astype(dtype)
        return array

    def _family(self) -> PreTokenizer:
        name = "gemma4" if self.model == "gemma4" else self.f.get(f"{PREFIX}pre", str, default="")
        if not name:
            logger.warning(
                "%s: no tokenizer.ggml.pre: the file was converted long ago; using 'default', answers may be worse",
                self.f.path,
            )
            name = "default"
        if name not in PRE_TOKENIZERS:
            raise UnsupportedModelError(
                f'{self.f.path}: unsupported pre-tokenizer: "{name}" (supported: {", ".join(sorted(PRE_TOKENIZERS))})'
            )
        return PRE_TOKENIZERS[name]

    def _add_bos(self) -> bool:
        if self.model in ("bert", "gemma4"):
            return True
        default = self.model == "llama" if self.family is None else self.family.add_bos
        return self._flag("add_bos_token", default)

    def _last(self, special: SpecialTokens) -> int | None:
        if self.model == "bert":
            return special.sep
        return special.eos if self._flag("add_eos_token", False) else None

    def _add_space_prefix(self) -> bool:
        return self.model == "llama" and self._flag("add_space_prefix", True)

    def _suppress_ids(self) -> frozenset[int]:
        ids = self.f.get_array(f"{PREFIX}suppress_tokens", int, default=())
        return frozenset(int(token) for token in ids if 0 <= token < len(self.types))

    def _arrays(self) -> Arrays:
        """The arrays of the vocabulary, from the cache, or computed and kept there."""
        merges = self._strings("merges") if self.family is not None else memoryview(b"")
        scores = self._per_token("scores", np.float32, 0, ValueType.FLOAT32, ValueType.INT32)
        if self.cache_dir is None:
            return self._compute(merges, scores)
        key = cache.digest([FORMAT, self.model.encode(), self.tokens, self.types.data, scores.data, merges])
        arrays = cache.load(self.cache_dir, key)
        if arrays is None:
            arrays = self._compute(merges, scores)
            cache.store(self.cache_dir, key, arrays)
        return arrays

    def _compute(self, merges: memoryview, scores: npt.NDArray[Any]) -> Arrays:
        starts = token_starts(self.tokens, self.n_vocab)
        texts = split_strings(self.tokens, starts)
        buckets, rows = Buckets.group(hash_texts(texts))
        raw = np.frombuffer(bytes(self.tokens), np.uint8)  # a copy: the file need not stay open
        arrays: Arrays = {"texts": raw, "text_starts": starts, "text_buckets": buckets, "text_rows": rows}
        if self.family is not None:
            merge_starts = token_starts(merges, self._count("merges"))
            arrays |= build_merges(texts, split_strings(merges, merge_starts)).to_arrays()
        elif self.model == "llama":
            arrays |= rank_tokens(texts, scores, self.types).to_arrays()
        return arrays

    def _model(self, arrays: Arrays, texts: TokenTexts, special: SpecialTokens) -> TokenizerModel:
        if self.family is not None:
            return BPE(texts, Merges.from_arrays(arrays), self.family, self._findable)
        if self.model == "bert":
            lowercase = self._flag("normalizer.lowercase", True)
            strip_accents = self._flag("normalizer.strip_accents", lowercase)
            words = split_strings(texts.raw, arrays["text_starts"])
            return WordPiece(words, special.unk, lowercase, strip_accents)
        return SPM(texts, Scores.from_arrays(arrays), self._add_space_prefix(), special.unk)

    def _findable(self, token: int) -> bool:
        return int(self.types[token]) not in (CONTROL, UNKNOWN, BYTE)

    def _partition(self, texts: TokenTexts) -> SpecialPartition:
        types = self.types
        ids = np.flatnonzero((types == CONTROL) | (types == USER_DEFINED) | (types == UNKNOWN)).tolist()
        spelled = {token: texts[token].decode("utf-8", "replace") for token in ids}
        hidden = [token for token in ids if self.types[token] != USER_DEFINED]
        return SpecialPartition(spelled, hidden, *self._strips(spelled))

    def _strips(self, spelled: dict[int, str]) -> tuple[list[int], list[int]]:
        """Tokens that swallow white space before, and after, them. Files do not say: it goes by the model's name."""
        pre = self.f.get(f"{PREFIX}pre", str, default="")
        arch = self.f.get("general.architecture", str, default="")
        name = self.f.get("general.name", str, default="").lower()
        if any(part in pre for part in _MASK_STRIPS_PRE) or any(part in arch for part in _MASK_STRIPS_ARCH):
            return [token for token, text in spelled.items() if text == "<mask>"], []
        if "phi-3" in name or "phi3" in name:
            return [], [token for token, text in spelled.items() if text not in _PHI3_KEEPS]
        if "modern-bert" in name:
            return [token for token, text in spelled.items() if text == "[MASK]"], []
        return [], []


_MASK_STRIPS_PRE = ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")
_MASK_STRIPS_ARCH = ("nomic-bert-moe", "jina-bert-v3")
_PHI3_KEEPS = ("<unk>", "<s>", "<|endoftext|>")


def _words_from_spaces(text: bytes) -> bytes:
    return text.replace(b"\xe2\x96\x81", b" ")


def _bytes_from_spelling(text: bytes) -> bytes:
    return decode_spelling(text.decode("utf-8", "replace"))

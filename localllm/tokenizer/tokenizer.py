"""Text to token ids and back, for the vocabulary inside a GGUF; it knows nothing of chats and stop strings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

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
from localllm.tokenizer.texts import Buckets, TokenTexts, hash_texts, split_strings, token_starts
from localllm.tokenizer.wordpiece import WordPiece

logger = logging.getLogger(__name__)

FORMAT = b"localllm-tokenizer-1"  # part of every cache key: raise it when a section changes its meaning
SUPPORTED_MODELS = ("bert", "gemma4", "gpt2", "llama")
PREFIX = "tokenizer.ggml."
MAX_TEXT_BYTES = 1 << 30


class TokenizerModel(Protocol):
    """What turns text without special tokens into ids."""

    def encode(self, text: str, after_special: bool = True) -> list[int]: ...


class Tokenizer:
    """A vocabulary ready for use. Its methods may be called from several threads.

    `special` names the special tokens, `eog_ids` end a generation, `suppress_ids` are never to be sampled,
    `token_types` is int32 [n_vocab] (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte), corrected where
    the file is known to be wrong. `add_bos` and `add_eos` say what `encode(add_special=True)` adds.
    """

    def __init__(
        self,
        texts: TokenTexts,
        model: TokenizerModel,
        special: SpecialTokens,
        token_types: npt.NDArray[np.int32],
        partition: SpecialPartition,
        spelling: Callable[[bytes], bytes],
        add_bos: bool,
        add_eos: bool,
        add_space_prefix: bool,
        suppress_ids: frozenset[int],
    ) -> None:
        self._texts, self._model, self._partition, self._spelling = texts, model, partition, spelling
        self.special = special
        self.token_types = token_types
        self._types = token_types.data
        self.n_vocab = len(texts)
        self.bos_id, self.eos_id = special.bos, special.eos
        self.eog_ids = frozenset(special.eog)
        self.suppress_ids = suppress_ids
        self.add_bos = add_bos and special.bos is not None
        self.add_eos = add_eos and self._last is not None
        self.add_space_prefix = add_space_prefix
        self._pieces: dict[int, bytes] = {}

    @property
    def _last(self) -> int | None:
        return self.special.sep if isinstance(self._model, WordPiece) else self.special.eos

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of `text`.

        `add_special` puts BOS and EOS around it as the model wants them, even where the text has its own.
        `parse_special` turns the texts of control tokens into those tokens; user-defined tokens always are. Unpaired
        surrogates count as U+FFFD.
        """
        ids = [self.special.bos] if add_special and self.add_bos and self.special.bos is not None else []
        after_special = True
        for fragment in self._partition.split(_well_formed(text), parse_special):
            if isinstance(fragment, str):
                ids += self._model.encode(fragment, after_special)
                after_special = False
            else:
                ids.append(fragment)
                after_special = True
        if add_special and self.add_eos and self._last is not None:
            ids.append(self._last)
        return ids

    def text(self, token: int) -> str:
        """The token as the vocabulary spells it (`▁the`, `Ġthe`, `<|im_end|>`)."""
        self._check(token)
        return self._texts[token].decode("utf-8", "replace")

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes the token stands for: none for control and unknown tokens unless `special`, none for unused ones.

        Raises:
            TokenizerError: no such id.
        """
        kind = self._types[self._check(token)]
        if kind in (CONTROL, UNKNOWN):
            return self._texts[token] if special else b""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token, kind)
        return piece

    def _piece(self, token: int, kind: int) -> bytes:
        text = self._texts[token]
        if kind == USER_DEFINED:
            return text
        if kind == BYTE:
            return _byte(text)
        return self._spelling(text) if kind == NORMAL else b""

    def _check(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise TokenizerError(f"no token {token}: the vocabulary has {self.n_vocab}")
        return token

    def decode(self, tokens: Iterable[int], special: bool = False) -> str:
        """The text of `tokens`, without the space that `encode` put before the first word.

        `special` shows control tokens. Bytes that are not UTF-8 become U+FFFD.
        """
        pieces = [piece for token in tokens if (piece := self.piece(token, special))]
        raw = b"".join(pieces)
        if self.add_space_prefix and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", "replace")

    def is_control(self, token: int) -> bool:
        """Whether the token is structure and not text."""
        return self._types[self._check(token)] == CONTROL


def _byte(text: bytes) -> bytes:
    try:
        return bytes([int(text[3:5], 16)])
    except ValueError:
        return text


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _words_from_spaces(text: bytes) -> bytes:
    return text.replace(b"\xe2\x96\x81", b" ")


def _bytes_from_spelling(text: bytes) -> bytes:
    return decode_spelling(text.decode("utf-8", "replace"))


def load_tokenizer(f: GGUFFile, cache_dir: Path | None = None) -> Tokenizer:
    """The tokenizer of a model. What is slow to compute is kept under `cache_dir`.

    The tokenizer does not need the file to stay open.

    Raises:
        UnsupportedModelError: a kind of tokenizer, or a pre-tokenizer, that is not known.
        TokenizerError: the vocabulary is missing or contradicts itself.
    """
    return _Loader(f, cache_dir).load()


class _Loader:
    """Reads the metadata of one file."""

    def __init__(self, f: GGUFFile, cache_dir: Path | None) -> None:
        self.f = f
        self.cache_dir = cache_dir
        self.model = f.get(f"{PREFIX}model", str, default="")
        if self.model not in SUPPORTED_MODELS:
            raise UnsupportedModelError(
                f'{f.path}: unsupported tokenizer: "{self.model}" (supported: {", ".join(SUPPORTED_MODELS)})'
            )
        self.tokens = self._strings("tokens")
        self.types = self._per_token("token_type", np.int32, NORMAL, ValueType.INT32, ValueType.UINT32)
        self.family = self._family() if self.model in ("gpt2", "gemma4") else None
        self.texts = TokenTexts(b"", np.zeros(1, np.uint32), Buckets(*Buckets.group(np.zeros(0, np.uint32))))
        self.arrays: dict[str, npt.NDArray[Any]] = {}

    def _flag(self, key: str, default: bool) -> bool:
        return self.f.get(PREFIX + key, bool, default=default)

    def _strings(self, key: str) -> bytes:
        value = self.f.metadata.raw(PREFIX + key)
        if value is None or value.element_type is not ValueType.STRING:
            raise TokenizerError(f"{self.f.path}: missing key {PREFIX + key!r}, expected an array of strings")
        if value.n_bytes >= MAX_TEXT_BYTES:
            raise TokenizerError(
                f"{self.f.path}: key {PREFIX + key!r} has {value.n_bytes} bytes, expected less than {MAX_TEXT_BYTES}"
            )
        return value.raw()

    def _count(self, key: str) -> int:
        value = self.f.metadata.raw(PREFIX + key)
        return 0 if value is None else len(value)

    def _per_token(self, key: str, dtype: type[np.generic], default: int, *kinds: ValueType) -> npt.NDArray[Any]:
        n_vocab = self._count("tokens")
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

    def load(self) -> Tokenizer:
        self._load_arrays()
        special = find_special_tokens(self.f, self.model, self.texts.find, self.types)
        model = self._model(special)
        return Tokenizer(
            self.texts,
            model,
            special,
            self.types,
            self._partition(),
            _bytes_from_spelling if self.family is not None and self.family.byte_level else _words_from_spaces,
            add_bos=self._add_bos(),
            add_eos=self.model == "bert" or self._flag("add_eos_token", False),
            add_space_prefix=self._add_space_prefix(),
            suppress_ids=self._suppress_ids(),
        )

    def _add_bos(self) -> bool:
        if self.model in ("bert", "gemma4"):
            return True
        default = self.model == "llama" if self.family is None else self.family.add_bos
        return self._flag("add_bos_token", default)

    def _add_space_prefix(self) -> bool:
        return self.model == "llama" and self._flag("add_space_prefix", True)

    def _suppress_ids(self) -> frozenset[int]:
        ids = self.f.get_array(f"{PREFIX}suppress_tokens", int, default=())
        return frozenset(int(token) for token in ids if 0 <= token < len(self.types))

    def _load_arrays(self) -> None:
        """Fill `texts` and `arrays` from the cache, or compute and keep them."""
        merges = self._strings("merges") if self.family is not None else b""
        scores = self._per_token("scores", np.float32, 0, ValueType.FLOAT32, ValueType.INT32)
        key = cache.digest([FORMAT, self.model.encode(), self.tokens, self.types.tobytes(), scores.tobytes(), merges])
        arrays = cache.load(self.cache_dir, key) if self.cache_dir is not None else None
        if arrays is None:
            arrays = self._compute(merges, scores)
            if self.cache_dir is not None:
                cache.store(self.cache_dir, key, arrays)
        self.arrays = arrays
        buckets = Buckets(arrays["text_buckets"].view(np.uint32), arrays["text_rows"].view(np.uint32))
        self.texts = TokenTexts(self.tokens, arrays["text_starts"].view(np.uint32), buckets)

    def _compute(self, merges: bytes, scores: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        starts = token_starts(self.tokens, self._count("tokens"))
        texts = split_strings(self.tokens, starts)
        buckets, rows = Buckets.group(hash_texts(texts))
        arrays: dict[str, npt.NDArray[Any]] = {"text_starts": starts, "text_buckets": buckets, "text_rows": rows}
        if self.family is not None:
            merge_starts = token_starts(merges, self._count("merges"))
            arrays |= build_merges(texts, split_strings(merges, merge_starts)).to_arrays()
        elif self.model == "llama":
            from localllm.tokenizer.spm import build_model

            model = build_model(self.tokens, starts, texts, scores, self.types)
            arrays["sentencepiece"] = np.frombuffer(model, np.uint8)
        return arrays

    def _model(self, special: SpecialTokens) -> TokenizerModel:
        if self.family is not None:
            return BPE(self.texts, Merges.from_arrays(self.arrays), self.family, self._findable)
        if self.model == "bert":
            lowercase = self._flag("normalizer.lowercase", True)
            strip_accents = self._flag("normalizer.strip_accents", lowercase)
            texts = split_strings(self.tokens, self.arrays["text_starts"].view(np.uint32))
            return WordPiece(texts, special.unk, lowercase, strip_accents)
        from localllm.tokenizer.spm import SentencePiece

        return SentencePiece(self.arrays["sentencepiece"].tobytes(), self._add_space_prefix(), special.unk)

    def _findable(self, token: int) -> bool:
        return int(self.types[token]) not in (CONTROL, UNKNOWN, BYTE)

    def _partition(self) -> SpecialPartition:
        ids = np.flatnonzero(np.isin(self.types, (CONTROL, USER_DEFINED, UNKNOWN))).tolist()
        texts = {token: self.texts[token].decode("utf-8", "replace") for token in ids}
        hidden = [token for token in ids if self.types[token] != USER_DEFINED]
        lstrip, rstrip = self._strips(texts)
        return SpecialPartition(texts, hidden, lstrip, rstrip)

    def _strips(self, texts: dict[int, str]) -> tuple[list[int], list[int]]:
        """Tokens that swallow white space before or after them; files do not say, so it goes by the model's name."""
        pre = self.f.get(f"{PREFIX}pre", str, default="")
        arch = self.f.get("general.architecture", str, default="")
        name = self.f.get("general.name", str, default="").lower()
        ids = {text: token for token, text in texts.items()}
        if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")) or any(
            part in arch for part in ("nomic-bert-moe", "jina-bert-v3")
        ):
            return [ids["<mask>"]] if "<mask>" in ids else [], []
        if "phi-3" in name or "phi3" in name:
            return [], [token for text, token in ids.items() if text not in ("<unk>", "<s>", "<|endoftext|>")]
        if "modern-bert" in name:
            return [ids["[MASK]"]] if "[MASK]" in ids else [], []
        return [], []

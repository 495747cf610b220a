"""Text to token ids and back; where the vocabulary came from, chats and stop strings are not its business."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from localllm.errors import TokenizerError
from localllm.tokenizer.partition import SpecialPartition
from localllm.tokenizer.special import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SpecialTokens
from localllm.tokenizer.texts import TokenTexts


class TokenizerModel(Protocol):
    """What turns text without special tokens into ids."""

    def encode(self, text: str, after_special: bool = True) -> list[int]: ...


class Tokenizer:
    """A vocabulary ready for use. Its methods may be called from several threads.

    `special` names the special tokens, `eog_ids` end a generation, `suppress_ids` are never to be sampled,
    `token_types` is int32 [n_vocab] (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte), corrected where
    the file is known to be wrong. `add_bos` and `add_eos` say whether `encode(add_special=True)` adds a token before
    and after the text (`first` and `last`: BOS and EOS, in BERT CLS and SEP).
    """

    def __init__(
        self,
        texts: TokenTexts,
        model: TokenizerModel,
        special: SpecialTokens,
        token_types: npt.NDArray[np.int32],
        partition: SpecialPartition,
        spelling: Callable[[bytes], bytes],
        first: int | None,
        last: int | None,
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
        self._first, self.last = first, last
        self.add_bos, self.add_eos = first is not None, last is not None
        self.add_space_prefix = add_space_prefix
        self._pieces: dict[int, bytes] = {}

    def encode(
        self, text: str, add_special: bool = True, parse_special: bool = True, *, is_continuation: bool = False
    ) -> list[int]:
        """The ids of `text`.

        `add_special` puts BOS and EOS around it as the model wants them, even where the text has its own.
        `parse_special` turns the texts of control tokens into those tokens; user-defined tokens always are. Unpaired
        surrogates count as U+FFFD. `is_continuation`: other text comes before it, so that no space is put in front.
        """
        ids = [self._first] if add_special and self._first is not None else []
        after_special = not is_continuation
        for fragment in self._partition.split(_well_formed(text), parse_special):
            if isinstance(fragment, str):
                ids += self._model.encode(fragment, after_special)
                after_special = False
            else:
                ids.append(fragment)
                after_special = True
        if add_special and self.last is not None:
            ids.append(self.last)
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

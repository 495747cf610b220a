"""SentencePiece BPE from the tokens and scores of a GGUF, run by the sentencepiece library with llama.cpp's ids.

The library is given a model in which only what text may become can match: normal, user-defined and unused tokens,
all as normal pieces with their score (llama.cpp merges by score whatever the type), and byte tokens as byte fallback.
Control and unknown tokens keep their place under a name that no text has.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import sentencepiece

from localllm.errors import TokenizerError
from localllm.tokenizer.special import BYTE, CONTROL, UNKNOWN

# Field numbers and values of sentencepiece_model.proto.
_PIECE_NORMAL, _PIECE_UNKNOWN, _PIECE_CONTROL, _PIECE_BYTE = 1, 2, 3, 6
_MODEL_TYPE_BPE = 2
_TRAINER_MODEL_TYPE, _TRAINER_BYTE_FALLBACK, _TRAINER_UNK_ID = 3, 35, 40
_TRAINER_BOS_ID, _TRAINER_EOS_ID, _TRAINER_PAD_ID = 41, 42, 43
_NORMALIZER_NAME, _NORMALIZER_ADD_DUMMY_PREFIX = 1, 3
_NORMALIZER_REMOVE_EXTRA_WHITESPACES, _NORMALIZER_ESCAPE_WHITESPACES = 4, 5
_NOT_A_TOKEN = (1 << 64) - 1  # -1 as a varint
_BYTE_NAMES = {b"<0x%02X>" % byte for byte in range(256)}


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _numbers(fields: dict[int, int]) -> bytes:
    return b"".join(_varint(field << 3) + _varint(value) for field, value in fields.items())


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def build_model(texts: Sequence[bytes], scores: npt.NDArray[np.float32], types: npt.NDArray[np.int32]) -> bytes:
    """A serialised ModelProto with a piece for each token and one more, the last, for what has no token."""
    names = {text: token for token, text in enumerate(texts)}
    byte_fallback = _BYTE_NAMES.issubset(texts[token] for token in np.flatnonzero(types == BYTE).tolist())
    lengths = [_varint(n) for n in range(1 << 12)]
    pieces = []
    for token, (text, score, kind) in enumerate(zip(texts, scores.tolist(), types.tolist(), strict=True)):
        piece_type = _PIECE_NORMAL
        if kind == BYTE and byte_fallback and text in _BYTE_NAMES:
            piece_type = _PIECE_BYTE
        elif kind in (CONTROL, UNKNOWN, BYTE) or names[text] != token:
            text, piece_type = b"\x01%d" % token, _PIECE_CONTROL
        n = len(text)
        body = (
            b"\x0a"
            + (lengths[n] if n < len(lengths) else _varint(n))
            + text
            + _SCORE_TYPE(0x15, score, 0x18, piece_type)
        )
        n = len(body)
        pieces.append(b"\x0a" + (lengths[n] if n < len(lengths) else _varint(n)) + body)
    unknown = b"\x01unknown"
    pieces.append(_message(1, _message(1, unknown) + _SCORE_TYPE(0x15, 0.0, 0x18, _PIECE_UNKNOWN)))
    return b"".join(pieces) + _settings(len(texts), byte_fallback)


_SCORE_TYPE = struct.Struct("<BfBB").pack


def _settings(unknown: int, byte_fallback: bool) -> bytes:
    trainer = {
        _TRAINER_MODEL_TYPE: _MODEL_TYPE_BPE,
        _TRAINER_BYTE_FALLBACK: int(byte_fallback),
        _TRAINER_UNK_ID: unknown,
        _TRAINER_BOS_ID: _NOT_A_TOKEN,
        _TRAINER_EOS_ID: _NOT_A_TOKEN,
        _TRAINER_PAD_ID: _NOT_A_TOKEN,
    }
    normalizer = {
        _NORMALIZER_ADD_DUMMY_PREFIX: 0,
        _NORMALIZER_REMOVE_EXTRA_WHITESPACES: 0,
        _NORMALIZER_ESCAPE_WHITESPACES: 1,
    }
    return _message(2, _numbers(trainer)) + _message(3, _message(_NORMALIZER_NAME, b"identity") + _numbers(normalizer))


class SentencePiece:
    """The tokenizer model; `encode` takes text without special tokens."""

    def __init__(self, model: bytes, add_space_prefix: bool, unk: int | None) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, OSError) as error:
            raise TokenizerError(f"the vocabulary cannot be used by sentencepiece: {error}") from error
        self._add_space_prefix = add_space_prefix
        self._unknown = self._processor.GetPieceSize() - 1
        self._unk = unk

    def encode(self, text: str, after_special: bool = True) -> list[int]:
        """The ids of `text`. A text at the start or right after a special token gets a space before it."""
        if self._add_space_prefix and after_special:
            text = " " + text
        ids: list[int] = self._processor.encode(text)
        if self._unknown in ids:
            replacement = [] if self._unk is None else [self._unk]
            return [token for found in ids for token in (replacement if found == self._unknown else [found])]
        return ids

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
from localllm.tokenizer.texts import U32Array

# Field numbers and values of sentencepiece_model.proto.
_PIECE_NORMAL, _PIECE_UNKNOWN, _PIECE_CONTROL, _PIECE_BYTE = 1, 2, 3, 6
_MODEL_TYPE_BPE = 2
_TRAINER_MODEL_TYPE, _TRAINER_BYTE_FALLBACK, _TRAINER_UNK_ID = 3, 35, 40
_TRAINER_BOS_ID, _TRAINER_EOS_ID, _TRAINER_PAD_ID = 41, 42, 43
_NORMALIZER_NAME, _NORMALIZER_ADD_DUMMY_PREFIX = 1, 3
_NORMALIZER_REMOVE_EXTRA_WHITESPACES, _NORMALIZER_ESCAPE_WHITESPACES = 4, 5
_NOT_A_TOKEN = (1 << 64) - 1  # -1 as a varint
_BYTE_NAMES = {b"<0x%02X>" % byte for byte in range(256)}

MAX_SHORT_TEXT = 118  # bytes: with it, both lengths of a record fit one byte
MAX_UNUSUAL = 1000  # beyond it, one pass over all tokens is faster than many over the stretches between


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


def build_model(
    raw: bytes,
    starts: U32Array,
    texts: Sequence[bytes],
    scores: npt.NDArray[np.float32],
    types: npt.NDArray[np.int32],
) -> bytes:
    """A serialised ModelProto with a piece for each token and one more, the last, for what has no token.

    `texts` are those that `raw` and `starts` hold as in `TokenTexts`; `scores` and `types` are [n_vocab].
    """
    byte_fallback = _BYTE_NAMES.issubset(texts[token] for token in np.flatnonzero(types == BYTE).tolist())
    piece_types = np.full(len(texts), _PIECE_NORMAL, np.uint8)
    piece_types[np.isin(types, (CONTROL, UNKNOWN, BYTE))] = _PIECE_CONTROL
    if byte_fallback:
        byte_tokens = np.flatnonzero(types == BYTE).tolist()
        piece_types[[token for token in byte_tokens if texts[token] in _BYTE_NAMES]] = _PIECE_BYTE
    unusual = _unusual(texts, _lengths(starts), piece_types)
    if len(unusual) > MAX_UNUSUAL:
        unusual = dict.fromkeys(range(len(texts))) | unusual
    records: list[bytes] = []
    done = 0
    for token in [*sorted(unusual), len(texts)]:
        records.append(_records(raw, starts, scores, piece_types, done, token))
        if token < len(texts):
            name = unusual[token]
            kind = piece_types[token] if name is None else _PIECE_CONTROL
            records.append(_record(texts[token] if name is None else name, float(scores[token]), int(kind)))
        done = token + 1
    records.append(_record(b"\x01unknown", 0.0, _PIECE_UNKNOWN))
    return b"".join(records) + _settings(len(texts), byte_fallback)


def _lengths(starts: U32Array) -> npt.NDArray[np.int64]:
    bounds = starts.astype(np.int64)
    return bounds[1:] - bounds[:-1] - 8


def _unusual(
    texts: Sequence[bytes], n_bytes: npt.NDArray[np.int64], piece_types: npt.NDArray[np.uint8]
) -> dict[int, bytes | None]:
    """Tokens whose record is written singly, with the name they get in place of their text.

    Long and empty texts need another encoding. A double text, or a hidden token spelled as one character, gets a name
    that no text has: the library would refuse the one and find the other.
    """
    long_or_empty = np.flatnonzero((n_bytes > MAX_SHORT_TEXT) | (n_bytes == 0)).tolist()
    unusual: dict[int, bytes | None] = dict.fromkeys(long_or_empty)
    hidden = np.flatnonzero((piece_types == _PIECE_CONTROL) & (n_bytes <= 4)).tolist()
    unusual |= {token: b"\x01%d" % token for token in hidden if len(texts[token].decode("utf-8", "replace")) == 1}
    if len(set(texts)) < len(texts):
        last = {text: token for token, text in enumerate(texts)}
        unusual |= {token: b"\x01%d" % token for token, text in enumerate(texts) if last[text] != token}
    return unusual


def _record(text: bytes, score: float, piece_type: int) -> bytes:
    return _message(1, _message(1, text) + _TAIL(0x15, score, 0x18, piece_type))


def _records(
    raw: bytes,
    starts: U32Array,
    scores: npt.NDArray[np.float32],
    piece_types: npt.NDArray[np.uint8],
    first: int,
    end: int,
) -> bytes:
    """The records of tokens first … end - 1, all of them short, in a few passes over their bytes.

    0a, n + 9 | 0a, n | text of n bytes | 15, score f32 | 18, type
    """
    if first >= end:
        return b""
    begin = int(starts[first]) - 8
    source = np.frombuffer(raw, np.uint8)[begin : int(starts[end]) - 8]
    text_starts = starts[first:end].astype(np.int64) - begin
    n = _lengths(starts[first : end + 1])
    ends = np.cumsum(n + 11)
    out = np.empty(ends[-1], np.uint8)
    is_text, from_text = np.ones(len(out), np.bool_), np.ones(len(source), np.bool_)
    tail = scores[first:end].astype("<f4").view(np.uint8).reshape(-1, 4)
    heads = ends - n - 11
    fields = {0: 0x0A, 1: n + 9, 2: 0x0A, 3: n}
    for offset, value in fields.items():
        out[heads + offset], is_text[heads + offset] = value, False
    for offset, value in enumerate(
        (0x15, tail[:, 0], tail[:, 1], tail[:, 2], tail[:, 3], 0x18, piece_types[first:end])
    ):
        out[ends - 7 + offset], is_text[ends - 7 + offset] = value, False
    for offset in range(1, 9):
        from_text[text_starts - offset] = False
    out[is_text] = source[from_text]
    return out.tobytes()


_TAIL = struct.Struct("<BfBB").pack


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

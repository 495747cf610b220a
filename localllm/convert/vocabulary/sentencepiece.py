"""Reads a tokenizer.model of SentencePiece: the few fields that a GGUF needs; it tokenises nothing.

The file is a protocol buffer (sentencepiece_model.proto):

    ModelProto      1: repeated SentencePiece   2: TrainerSpec   3: NormalizerSpec
    SentencePiece   1: piece, string   2: score, float   3: type, enum (1 if absent)
    TrainerSpec     3: model_type, enum (1 unigram, 2 BPE)   41, 42: ids of bos and eos (1, 2 if absent; -1 none)
    NormalizerSpec  3: add_dummy_prefix, bool (true if absent)

A field is a varint `number << 3 | wire type`, then by wire type 0 a varint, 1 eight bytes, 2 a varint length and as
many bytes, 5 four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from localllm.errors import ConvertError

NORMAL, BYTE = 1, 6
UNIGRAM, BPE = 1, 2


@dataclass
class Pieces:
    """The vocabulary of a SentencePiece model; `types` are numbered as GGUF does, `roles` are ids of bos and eos."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    add_space_prefix: bool = True
    roles: dict[str, int] = field(default_factory=dict)


def read_sentencepiece(raw: bytes, path: Path) -> Pieces:
    """The pieces of a BPE model; `path` is for messages.

    Raises:
        ConvertError: the file is damaged, or a unigram model.
    """
    found, kind = Pieces(), UNIGRAM
    try:
        for number, value in _fields(raw):
            if number == 1 and isinstance(value, bytes):
                _add_piece(found, value)
            elif number == 2 and isinstance(value, bytes):
                kind = _integer(value, 3, UNIGRAM)
                found.roles = {"bos": _integer(value, 41, 1), "eos": _integer(value, 42, 2)}
            elif number == 3 and isinstance(value, bytes):
                found.add_space_prefix = bool(_integer(value, 3, 1))
    except (IndexError, ValueError, struct.error) as error:
        raise ConvertError(f"{path}: not a SentencePiece model, or damaged: {error}") from error
    if not found.tokens:
        raise ConvertError(f"{path}: not a SentencePiece model: it has no pieces")
    if kind != BPE:
        raise ConvertError(f"{path}: unsupported tokenizer: SentencePiece of kind {kind}, expected {BPE} (BPE)")
    found.roles = {role: token for role, token in found.roles.items() if token < len(found.tokens)}
    return found


def _add_piece(found: Pieces, raw: bytes) -> None:
    token, score, kind = "", 0.0, NORMAL
    for number, value in _fields(raw):
        if number == 1 and isinstance(value, bytes):
            token = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    if not NORMAL <= kind <= BYTE:
        raise ValueError(f"piece {len(found.tokens)} has type {kind}")
    found.tokens.append(token)
    found.scores.append(score)
    found.types.append(kind)


def _integer(raw: bytes, wanted: int, default: int) -> int:
    value = default
    for number, found in _fields(raw):
        if number == wanted and isinstance(found, int):
            value = found
    return value


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of all fields: integers of varints, the bytes of all others."""
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, position = _varint(raw, position)
            yield number, value
            continue
        if wire == 2:
            length, position = _varint(raw, position)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {position}")
        if length > len(raw) - position:
            raise ValueError(f"a field of {length} bytes at byte {position} of {len(raw)}")
        yield number, raw[position : position + length]
        position += length


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"a number of more than 10 bytes at byte {position}")

"""Builds GGUF files field by field, so that each field can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@dataclass
class Tensor:
    """A tensor info with whatever fields a test wants; `offset` None means the right one."""

    name: str | bytes = "t"
    shape: Sequence[int] = (32,)
    type: int = 0
    nbytes: int = 0
    offset: int | None = None
    n_dims: int | None = None
    name_length: int | None = None


@dataclass
class GGUFBytes:
    """The fields of a file; `n_tensors` and `n_kv` None mean the right counts."""

    pack_value: Callable[[int, Any], bytes]
    kvs: Sequence[tuple[str | bytes, int, Any]] = ()
    tensors: Sequence[Tensor] = ()
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_kv: int | None = None
    alignment: int = 32
    drop_last_bytes: int = 0

    def _string(self, text: str | bytes, length: int | None = None) -> bytes:
        raw = text if isinstance(text, bytes) else text.encode()
        return struct.pack("<q", len(raw) if length is None else length) + raw

    def _key_value(self, key: str | bytes, kind: int, value: Any) -> bytes:
        packed = value if isinstance(value, bytes) else self.pack_value(kind, value)
        return self._string(key) + struct.pack("<i", kind) + packed

    def header(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_kv = len(self.kvs) if self.n_kv is None else self.n_kv
        out = self.magic + struct.pack("<Iqq", self.version, n_tensors, n_kv)
        out += b"".join(self._key_value(*kv) for kv in self.kvs)
        offset = 0
        for t in self.tensors:
            out += self._string(t.name, t.name_length)
            out += struct.pack("<I", len(t.shape) if t.n_dims is None else t.n_dims)
            out += struct.pack(f"<{len(t.shape)}q", *t.shape)
            stored = offset if t.offset is None else t.offset
            out += struct.pack("<iQ", t.type, stored % 2**64)
            offset += -(-t.nbytes // self.alignment) * self.alignment
        return out

    def to_bytes(self) -> bytes:
        out = self.header()
        if self.tensors:
            out += bytes(-len(out) % self.alignment)
        for i, t in enumerate(self.tensors):
            raw = bytes((i + j) % 100 for j in range(t.nbytes))
            out += raw + bytes(-t.nbytes % self.alignment)
        return out[: len(out) - self.drop_last_bytes]


@pytest.fixture(scope="session")
def tensor_fields() -> type[Tensor]:
    return Tensor


@pytest.fixture
def write(tmp_path: Path, tiny_models: ModuleType) -> Callable[..., Path]:
    """`write(kvs=…, tensors=…, …)` writes `m.gguf` from the fields of `GGUFBytes` and gives its path."""

    def write_file(name: str = "m.gguf", **fields: Any) -> Path:
        path = tmp_path / name
        path.write_bytes(GGUFBytes(tiny_models.pack_value, **fields).to_bytes())
        return path

    return write_file

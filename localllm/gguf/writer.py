"""Writes GGUF files in one pass: all that stands before the data, then tensor after tensor; it converts no numbers.

The `gguf` package's writer takes arrays apart into single elements, guesses their types, and refuses empty ones; here
an array that was read is written as the bytes it was. Where both can write a file, the files are the same.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from localllm.gguf.header import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    MAX_TENSOR_NAME_BYTES,
    ArrayValue,
    Header,
)
from localllm.gguf.types import FLOAT_TYPES, INTEGER_TYPES, GGMLType, ValueType

VERSION = 3
BUFFER_BYTES = 1 << 20
ALIGNMENT_KEY = "general.alignment"

_CODES = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_SCALAR_INTEGERS = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
_ARRAY_INTEGERS = (ValueType.INT32, ValueType.UINT32, ValueType.INT64, ValueType.UINT64)
_RANGES = {kind: (np.iinfo(kind.name.lower()).min, np.iinfo(kind.name.lower()).max) for kind in INTEGER_TYPES}
_NUMPY_KINDS = {np.dtype(kind.name.lower()): kind for kind in (*INTEGER_TYPES, *FLOAT_TYPES)}
_NUMPY_KINDS[np.dtype(np.bool_)] = ValueType.BOOL


@dataclass(frozen=True)
class Typed:
    """A metadata value with the type that it has in the file; a list or NumPy array is an array of this type."""

    type: ValueType
    value: Any


MetadataValue = str | bool | int | float | list[Any] | npt.NDArray[Any] | ArrayValue | Typed
"""What `Writer` takes. Where no type is said: an integer is uint32, or the first of int32, uint64, int64 that holds it;
integers in a list are int32, or the first of uint32, int64, uint64; floats are float32. A list's elements have one
type; an empty list needs `Typed`."""


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written. `shape` is in NumPy's order, outermost first; `type` is what its bytes will be.

    `type` is a GGML type id: a `GGMLType`, or the `gguf` package's `GGMLQuantizationType`.
    """

    name: str
    shape: tuple[int, ...]
    type: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file, without padding.

        Raises:
            ValueError: the type does not exist, or rows do not hold a whole number of its blocks.
        """
        kind = GGMLType(self.type)
        row = self.shape[-1] if self.shape else 1
        if row % kind.block_size:
            raise ValueError(f"tensor {self.name!r}: rows of {row} elements, expected a multiple of {kind.block_size}")
        return math.prod(self.shape) // kind.block_size * kind.type_size


def typed_metadata(header: Header) -> dict[str, MetadataValue]:
    """The metadata of a file that was read, for `Writer`: each value keeps its type. The header must stay open."""
    return {key: _with_type(value, header.types[key]) for key, value in header.metadata.items()}


def _with_type(value: Any, kind: ValueType) -> MetadataValue:
    return value if isinstance(value, ArrayValue) else Typed(kind, value)


class Writer:
    """A new GGUF file that is being written; a context manager, which removes a file that was not finished.

    The header is written at once; then `write` takes the tensors' bytes in the order of `plans`. Nothing is kept.
    """

    def __init__(self, path: Path, metadata: Mapping[str, MetadataValue], plans: Sequence[TensorPlan]) -> None:
        """Creates `path`.

        Raises:
            ValueError: a value or a plan that the format cannot hold.
            OSError: the file exists or cannot be written.
        """
        self.path = path
        self._plans = list(plans)
        self._alignment = _alignment(metadata)
        head = _head(metadata, self._plans, self._alignment)
        self._current = 0  # index of the tensor that the next bytes belong to
        self._left = self._plans[0].nbytes if self._plans else 0
        self._finished = False
        self._file: BinaryIO = path.open("xb", buffering=BUFFER_BYTES)
        try:
            self._file.write(head)
            self._skip_whole()
        except BaseException:
            self._discard()
            raise

    def write(self, data: bytes | memoryview | npt.NDArray[Any]) -> None:
        """The next bytes of the tensor that is due; several calls may give it piece by piece. Arrays as they lie in C.

        Raises:
            ValueError: more bytes than the tensor has left, or no tensor is left.
        """
        view = _bytes_of(data)
        if self._current == len(self._plans):
            if view.nbytes:
                raise ValueError(f"{self.path}: {view.nbytes} bytes more than the planned tensors have")
            return
        if view.nbytes > self._left:
            plan = self._plans[self._current]
            raise ValueError(f"tensor {plan.name!r}: {view.nbytes} bytes given, expected {self._left} of {plan.nbytes}")
        self._file.write(view)
        self._left -= view.nbytes
        self._skip_whole()

    def finish(self) -> None:
        """See that all tensors are there, and that they are on the disk.

        Raises:
            ValueError: bytes are missing; the message names the first tensor that is not whole.
        """
        if self._current < len(self._plans):
            plan = self._plans[self._current]
            raise ValueError(f"tensor {plan.name!r}: {plan.nbytes - self._left} bytes given, expected {plan.nbytes}")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._finished = True

    def _skip_whole(self) -> None:
        """Pad the current tensor if it is whole, and go on to the next one that is not empty."""
        while self._current < len(self._plans) and not self._left:
            self._file.write(bytes(-self._plans[self._current].nbytes % self._alignment))
            self._current += 1
            if self._current < len(self._plans):
                self._left = self._plans[self._current].nbytes

    def _discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            self._discard()


def _bytes_of(data: bytes | memoryview | npt.NDArray[Any]) -> memoryview:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")


def _alignment(metadata: Mapping[str, MetadataValue]) -> int:
    if ALIGNMENT_KEY not in metadata:
        return DEFAULT_ALIGNMENT
    kind, value = _scalar_type(ALIGNMENT_KEY, metadata[ALIGNMENT_KEY])
    if kind is not ValueType.UINT32 or value <= 0 or value & (value - 1):
        raise ValueError(f"{ALIGNMENT_KEY} is {value!r} ({kind.name.lower()}), expected a power of two as uint32")
    return int(value)


def _head(metadata: Mapping[str, MetadataValue], plans: Sequence[TensorPlan], alignment: int) -> bytes:
    """All that stands before the data, with the padding if data follow."""
    out = bytearray(MAGIC + struct.pack("<Iqq", VERSION, len(plans), len(metadata)))
    for key, value in metadata.items():
        out += _string(key) + _packed(key, value)
    offset = 0
    seen: set[str] = set()
    for plan in plans:
        _check(plan, seen)
        out += _string(plan.name) + struct.pack("<I", len(plan.shape))
        out += struct.pack(f"<{len(plan.shape)}q", *reversed(plan.shape))
        out += struct.pack("<iQ", plan.type, offset)
        offset += -(-plan.nbytes // alignment) * alignment
    if plans:
        out += bytes(-len(out) % alignment)
    return bytes(out)


def _check(plan: TensorPlan, seen: set[str]) -> None:
    if plan.name in seen:
        raise ValueError(f"tensor {plan.name!r} is planned twice")
    if len(plan.name.encode()) > MAX_TENSOR_NAME_BYTES:
        raise ValueError(f"tensor {plan.name!r}: the name is longer than {MAX_TENSOR_NAME_BYTES} bytes")
    if len(plan.shape) > MAX_DIMS or any(n < 0 for n in plan.shape):
        raise ValueError(f"tensor {plan.name!r}: shape {plan.shape}, expected up to {MAX_DIMS} sizes from 0 on")
    seen.add(plan.name)


def _string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else bytes(text)
    return struct.pack("<Q", len(raw)) + raw


def _packed(key: str, value: MetadataValue) -> bytes:
    """The type and the value of a key."""
    if isinstance(value, ArrayValue):
        return _array_head(value.element_type, len(value)) + bytes(value.view())
    inner = value.value if isinstance(value, Typed) else value
    if not isinstance(inner, list | np.ndarray):
        kind, scalar = _scalar_type(key, value)
        return struct.pack("<i", kind) + _packed_elements(key, kind, [scalar])
    kind = value.type if isinstance(value, Typed) else _array_type(key, inner)
    return _array_head(kind, len(inner)) + _packed_elements(key, kind, inner)


def _array_head(kind: ValueType, length: int) -> bytes:
    return struct.pack("<iiQ", ValueType.ARRAY, kind, length)


def _scalar_type(key: str, value: Any) -> tuple[ValueType, Any]:
    if isinstance(value, Typed):
        return value.type, value.value
    if isinstance(value, str):
        return ValueType.STRING, value
    if isinstance(value, bool):
        return ValueType.BOOL, value
    if isinstance(value, float):
        return ValueType.FLOAT32, value
    if isinstance(value, int):
        return _integer_type(key, value, value, _SCALAR_INTEGERS), value
    raise ValueError(f"key {key!r}: {type(value).__name__} is no metadata value")


def _integer_type(key: str, low: int, high: int, kinds: Sequence[ValueType]) -> ValueType:
    """The first of `kinds` that holds low and high."""
    for kind in kinds:
        if _RANGES[kind][0] <= low and high <= _RANGES[kind][1]:
            return kind
    raise ValueError(f"key {key!r}: {low} to {high} do not fit 64 bits")


def _array_type(key: str, elements: Any) -> ValueType:
    if isinstance(elements, np.ndarray):
        if elements.ndim != 1 or elements.dtype not in _NUMPY_KINDS:
            raise ValueError(f"key {key!r}: an array of {elements.ndim} dimensions of {elements.dtype}")
        return _NUMPY_KINDS[elements.dtype]
    if not elements:
        raise ValueError(f"key {key!r}: {elements!r} has no type, expected `Typed`")
    kinds = {bytes if isinstance(e, bytes) else type(e) for e in elements}
    if kinds == {int}:
        return _integer_type(key, min(elements), max(elements), _ARRAY_INTEGERS)
    usual = {str: ValueType.STRING, bytes: ValueType.STRING, bool: ValueType.BOOL, float: ValueType.FLOAT32}
    if len(kinds) != 1 or not kinds <= set(usual):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"key {key!r}: an array of {names}, expected strings, integers, floats or booleans")
    return usual[kinds.pop()]


def _packed_elements(key: str, kind: ValueType, elements: Any) -> bytes:
    if kind is ValueType.STRING:
        return b"".join(map(_string, elements))
    values = elements.tolist() if isinstance(elements, np.ndarray) else elements
    try:
        return struct.pack(f"<{len(values)}{_CODES[kind]}", *values)
    except (struct.error, KeyError, OverflowError) as error:
        raise ValueError(f"key {key!r}: {error}, expected {kind.name.lower()}") from error

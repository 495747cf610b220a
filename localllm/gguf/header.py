"""Parses what stands before the tensor data of a GGUF file, with the standard library; it never looks at the weights.

    magic "GGUF" | version u32 | n_tensors i64 | n_kv i64
    n_kv  x  key string | value type i32 | value
    n_tensors x  name string | n_dims u32 | ne i64[n_dims] | type i32 | offset u64
    padding to `general.alignment`, then the tensors, each padded likewise, in the order of their listing

All little-endian. A string is a u64 byte length and that many bytes; an array an i32 element type, a u64 count and
the elements. Every length is compared with the bytes left before it is used, so that what a damaged file can
make this module allocate is bounded by the size of the file.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from localllm.errors import GGUFError
from localllm.gguf.types import GGMLType, ValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_STRING_BYTES = 1 << 30
MAX_ARRAY_LENGTH = 1 << 30
MAX_DIMS = 4
MAX_TENSOR_NAME_BYTES = 63
MIN_KV_BYTES = 8 + 1 + 4 + 1
MIN_TENSOR_INFO_BYTES = 8 + 4 + 4 + 8
INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1

_SCALARS = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}
_U32, _I32 = _SCALARS[ValueType.UINT32], _SCALARS[ValueType.INT32]
_U64, _I64 = _SCALARS[ValueType.UINT64], _SCALARS[ValueType.INT64]

EndOfStrings = Callable[[mmap.mmap, int, int], int]


@dataclass(frozen=True, repr=False)
class ArrayValue(Sequence[Any]):
    """A metadata array that stays in the file until it is asked for.

    `offset` is the absolute byte position of the first element, `n_bytes` the extent of all of them.
    Iterating, indexing and `tolist` read them anew each time; they need the header to be open.
    """

    buffer: mmap.mmap
    element_type: ValueType
    length: int
    offset: int
    n_bytes: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.tolist()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"<array of {self.length} {self.element_type.name.lower()}>"

    def tolist(self) -> list[Any]:
        """The elements as Python values; bytes of strings that are not UTF-8 become U+FFFD."""
        if self.element_type is ValueType.STRING:
            return [raw.decode("utf-8", "replace") for raw in self.byte_strings()]
        code = _SCALARS[self.element_type].format[-1]
        return list(struct.unpack_from(f"<{self.length}{code}", self.buffer, self.offset))

    def byte_strings(self) -> list[bytes]:
        """The elements of an array of strings, as they are in the file."""
        buffer, position, read_length = self.buffer, self.offset, _U64.unpack_from
        strings = []
        for _ in range(self.length):
            start = position + 8
            position = start + read_length(buffer, position)[0]
            strings.append(buffer[start:position])
        return strings

    def view(self) -> memoryview:
        """The bytes of all elements as they are in the file, not copied. Keeps the mapping alive."""
        return memoryview(self.buffer)[self.offset : self.offset + self.n_bytes]


@dataclass(frozen=True)
class TensorHeader:
    """Where a tensor is. `shape` is in GGUF order (ne[0], the contiguous dimension, first), `offset` absolute."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    n_elements: int
    nbytes: int
    offset: int


class Header:
    """The metadata and the tensor list of one GGUF file, mapped; a context manager.

    `metadata` holds Python values and `ArrayValue`s, `types` the type of each value (for an array, of its elements),
    `tensors` the `TensorHeader`s in the order of the file.

    Raises:
        GGUFError: the file is not a GGUF, is truncated, or breaks a rule of the format.
    """

    def __init__(self, path: str | os.PathLike[str], end_of_strings: EndOfStrings | None = None) -> None:
        """`end_of_strings` is what finds where an array of strings ends (`walk_strings`)."""
        self.path = Path(path)
        self.buffer = _map(self.path)
        try:
            parser = _Parser(self.path, self.buffer, end_of_strings or walk_strings)
            self.version, n_tensors, n_kv = parser.preamble()
            self.metadata, self.types = parser.key_values(n_kv)
            self.alignment = parser.alignment(self.metadata, self.types)
            self.tensors = parser.tensors(n_tensors, self.alignment)
            self.data_offset = parser.data_offset
        except BaseException:
            self.buffer.close()
            raise

    @property
    def file_bytes(self) -> int:
        return len(self.buffer)

    def close(self) -> None:
        """Unmap the file, or leave that to the last array that still looks into it."""
        try:
            self.buffer.close()
        except BufferError:
            return

    def __enter__(self) -> Header:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metadata(path: str | os.PathLike[str], max_array_length: int | None = None) -> dict[str, Any]:
    """All metadata of one GGUF file as plain Python values, arrays as lists.

    Arrays with more than `max_array_length` elements come back empty: a vocabulary is rarely wanted.

    Raises:
        GGUFError: as `Header`.
    """
    limit = MAX_ARRAY_LENGTH if max_array_length is None else max_array_length
    with Header(path) as header:
        return {key: _plain(value, limit) for key, value in header.metadata.items()}


def _plain(value: Any, max_array_length: int) -> Any:
    if not isinstance(value, ArrayValue):
        return value
    return value.tolist() if len(value) <= max_array_length else []


def _map(path: Path) -> mmap.mmap:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise GGUFError(f"{path}: not a GGUF file: it is a directory")
        if not stat.S_ISREG(mode):
            raise GGUFError(f"{path}: not a GGUF file: it is not a regular file")
        with path.open("rb") as file:
            start = file.read(64)
            if not start.startswith(MAGIC):
                raise _not_a_gguf(path, start)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except PermissionError as error:
        raise GGUFError(f"{path}: permission denied", hint=f"chmod u+r {path}") from error
    except (OSError, ValueError) as error:
        raise GGUFError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _not_a_gguf(path: Path, start: bytes) -> GGUFError:
    if not start:
        return GGUFError(f"{path}: not a GGUF file: it is empty", hint="download it again")
    if len(start) < len(MAGIC) and MAGIC.startswith(start):
        return GGUFError(f"{path}: truncated GGUF file: it ends after {len(start)} bytes", hint="download it again")
    hint = None
    if start.startswith(b"version https://git-lfs"):
        hint = "this is a Git LFS pointer: run `git lfs pull` where it came from"
    elif start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        hint = "this is a web page: download the file itself, not the page that shows it"
    elif start.startswith(b"PK"):
        hint = "this is a zip archive: unpack it first"
    shown = start[:24].decode("latin-1")
    return GGUFError(f"{path}: not a GGUF file: it starts with {shown!r}, expected 'GGUF'", hint=hint)


def walk_strings(buffer: mmap.mmap, position: int, count: int) -> int:
    """Where `count` strings end that begin at `position`; beyond the end of the buffer if they do not fit it."""
    last, read_length = len(buffer) - 8, _U64.unpack_from
    with memoryview(buffer) as view:
        for _ in range(count):
            if position > last:
                return len(buffer) + 1
            position += 8 + read_length(view, position)[0]
    return position


class _Parser:
    """A cursor over the mapped file that checks before it reads."""

    def __init__(self, path: Path, buffer: mmap.mmap, end_of_strings: EndOfStrings) -> None:
        self.path = path
        self.buffer = buffer
        self.end_of_strings = end_of_strings
        self.end = len(buffer)
        self.position = len(MAGIC)
        self.data_offset = 0

    def fail(self, what: str, hint: str | None = None) -> NoReturn:
        raise GGUFError(f"{self.path}: {what}", hint=hint)

    def need(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.end - self.position:
            self.fail(
                f"truncated or corrupt GGUF file: {what} needs {n_bytes} bytes at offset {self.position}, "
                f"the file ends at {self.end}",
                hint="download it again",
            )

    def scalar(self, format_: struct.Struct, what: str) -> Any:
        self.need(format_.size, what)
        (value,) = format_.unpack_from(self.buffer, self.position)
        self.position += format_.size
        return value

    def string(self, what: str) -> bytes:
        n_bytes = self.scalar(_U64, f"the length of {what}")
        if n_bytes > MAX_STRING_BYTES:
            self.fail(f"corrupt GGUF file: {what} has a length of {n_bytes}, the limit is {MAX_STRING_BYTES} bytes")
        self.need(n_bytes, what)
        start = self.position
        self.position += n_bytes
        return self.buffer[start : self.position]

    def name(self, what: str) -> str:
        raw = self.string(what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"corrupt GGUF file: {what} is not UTF-8: {raw[:64]!r}")

    def preamble(self) -> tuple[int, int, int]:
        version = self.scalar(_U32, "the version")
        if version not in VERSIONS:
            self._refuse_version(version)
        return (
            version,
            self._count("n_tensors", MIN_TENSOR_INFO_BYTES, also=8),
            self._count("n_kv", MIN_KV_BYTES, also=0),
        )

    def _refuse_version(self, version: int) -> NoReturn:
        if version and version & 0xFFFF == 0:
            self.fail(
                f"GGUF version {version:#010x}: the file is of the other byte order (big-endian)",
                hint="convert it with gguf-convert-endian, or download the little-endian file",
            )
        self.fail(
            f"unsupported GGUF version {version} (supported: {', '.join(map(str, VERSIONS))})",
            hint="convert the model again with a current converter" if version == 1 else None,
        )

    def _count(self, what: str, least_bytes: int, also: int) -> int:
        count: int = self.scalar(_I64, what)
        left = self.end - self.position - also
        if count < 0 or count * least_bytes > left:
            self.fail(
                f"truncated or corrupt GGUF file: {what} is {count}, expected 0 to {max(left, 0) // least_bytes} "
                f"for the {max(left, 0)} bytes that follow"
            )
        return count

    def key_values(self, n_kv: int) -> tuple[dict[str, Any], dict[str, ValueType]]:
        metadata: dict[str, Any] = {}
        types: dict[str, ValueType] = {}
        for i in range(n_kv):
            key = self.name(f"key {i}")
            if not key:
                self.fail(f"corrupt GGUF file: key {i} is empty")
            if key in metadata:
                self.fail(f"corrupt GGUF file: duplicate key {key!r}")
            types[key], metadata[key] = self._value(key)
        return metadata, types

    def _value_type(self, key: str) -> ValueType:
        number = self.scalar(_I32, f"the type of key {key!r}")
        try:
            return ValueType(number)
        except ValueError:
            self.fail(f"corrupt GGUF file: key {key!r} has value type {number}, expected 0 to {max(ValueType)}")

    def _value(self, key: str) -> tuple[ValueType, Any]:
        kind = self._value_type(key)
        if kind is ValueType.ARRAY:
            array = self._array(key)
            return array.element_type, array
        if kind is ValueType.STRING:
            return kind, self.string(f"the value of key {key!r}").decode("utf-8", "replace")
        return kind, self.scalar(_SCALARS[kind], f"the value of key {key!r}")

    def _array(self, key: str) -> ArrayValue:
        kind = self._value_type(key)
        if kind is ValueType.ARRAY:
            self.fail(f"corrupt GGUF file: key {key!r} is an array of arrays, which the format does not allow")
        length = self.scalar(_U64, f"the array length of key {key!r}")
        if length > MAX_ARRAY_LENGTH:
            self.fail(f"corrupt GGUF file: key {key!r} has {length} elements, the limit is {MAX_ARRAY_LENGTH}")
        self.need(length * kind.n_bytes, f"the array of key {key!r} ({length} elements)")
        start = self.position
        if kind is ValueType.STRING:
            self._skip_strings(key, length)
        else:
            self.position += length * kind.n_bytes
        return ArrayValue(self.buffer, kind, length, start, self.position - start)

    def _skip_strings(self, key: str, count: int) -> None:
        position = self.end_of_strings(self.buffer, self.position, count)
        if position > self.end:
            self.fail(f"truncated or corrupt GGUF file: the strings of key {key!r} run past the end of the file")
        self.position = position

    def alignment(self, metadata: Mapping[str, Any], types: Mapping[str, ValueType]) -> int:
        key = "general.alignment"
        if key not in metadata:
            return DEFAULT_ALIGNMENT
        value = metadata[key]
        if types[key] is not ValueType.UINT32 or isinstance(value, ArrayValue):
            self.fail(f"corrupt GGUF file: key {key!r} is of type {types[key].name.lower()}, expected uint32")
        if value == 0 or value & (value - 1):
            self.fail(f"corrupt GGUF file: key {key!r} is {value}, expected a power of two")
        return int(value)

    def tensors(self, n_tensors: int, alignment: int) -> dict[str, TensorHeader]:
        relative = {}
        for i in range(n_tensors):
            tensor = self._tensor_info(i)
            if tensor.name in relative:
                self.fail(f"corrupt GGUF file: duplicate tensor {tensor.name!r}")
            relative[tensor.name] = tensor
        self.data_offset = _padded(self.position, alignment) if n_tensors else self.position
        if self.data_offset > self.end:
            self.fail(
                f"truncated GGUF file: the tensor data starts at {self.data_offset}, the file ends at {self.end}",
                hint="download it again",
            )
        self._check_offsets(relative.values(), alignment)
        return {name: _moved(tensor, self.data_offset) for name, tensor in relative.items()}

    def _tensor_info(self, i: int) -> TensorHeader:
        name = self.name(f"the name of tensor {i}")
        if len(name.encode()) > MAX_TENSOR_NAME_BYTES:
            self.fail(
                f"corrupt GGUF file: the name of tensor {i} is {len(name.encode())} bytes long, "
                f"the limit is {MAX_TENSOR_NAME_BYTES}"
            )
        shape = self._shape(name)
        kind = self._tensor_type(name)
        n_elements, nbytes = self._extent(name, shape, kind)
        offset = self.scalar(_U64, f"the offset of tensor {name!r}")
        return TensorHeader(name, shape, kind, n_elements, nbytes, offset)

    def _shape(self, name: str) -> tuple[int, ...]:
        n_dims = self.scalar(_U32, f"the dimensions of tensor {name!r}")
        if n_dims > MAX_DIMS:
            self.fail(f"corrupt GGUF file: tensor {name!r} has {n_dims} dimensions, the limit is {MAX_DIMS}")
        shape = tuple(self.scalar(_I64, f"the shape of tensor {name!r}") for _ in range(n_dims))
        if any(n < 0 for n in shape):
            self.fail(f"corrupt GGUF file: tensor {name!r} has shape {shape}, expected no negative dimension")
        return shape

    def _tensor_type(self, name: str) -> GGMLType:
        number = self.scalar(_I32, f"the type of tensor {name!r}")
        try:
            return GGMLType(number)
        except ValueError:
            self.fail(
                f"tensor {name!r} has type {number}, which is unknown or retired (known: 0 to {max(GGMLType)})",
                hint="download a current quantization of the model",
            )

    def _extent(self, name: str, shape: tuple[int, ...], kind: GGMLType) -> tuple[int, int]:
        n_elements = 1
        for n in shape:
            if n > 1 and n_elements > INT64_MAX // n:
                self.fail(f"corrupt GGUF file: tensor {name!r} has shape {shape}: more than {INT64_MAX} elements")
            n_elements *= n
        row = shape[0] if shape else 1
        if row % kind.block_size:
            self.fail(
                f"corrupt GGUF file: tensor {name!r} has rows of {row} elements, "
                f"expected a multiple of {kind.block_size} for {kind.name}"
            )
        nbytes = n_elements // kind.block_size * kind.type_size
        if nbytes > UINT64_MAX:
            self.fail(f"corrupt GGUF file: tensor {name!r} has shape {shape}: more than {UINT64_MAX} bytes")
        return n_elements, nbytes

    def _check_offsets(self, tensors: Iterable[TensorHeader], alignment: int) -> None:
        expected = 0
        for tensor in tensors:
            if tensor.offset != expected:
                self.fail(
                    f"corrupt GGUF file: tensor {tensor.name!r} has offset {tensor.offset}, expected {expected}: "
                    "tensors lie one after the other in the order of their listing"
                )
            if self.data_offset + expected + tensor.nbytes > self.end:
                self.fail(
                    f"truncated or corrupt GGUF file: tensor {tensor.name!r} needs {tensor.nbytes} bytes "
                    f"at offset {self.data_offset + expected}, the file ends at {self.end}",
                    hint="download it again",
                )
            expected += _padded(tensor.nbytes, alignment)


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment


def _moved(tensor: TensorHeader, by: int) -> TensorHeader:
    return TensorHeader(tensor.name, tensor.shape, tensor.type, tensor.n_elements, tensor.nbytes, tensor.offset + by)

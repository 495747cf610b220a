"""A GGUF model as NumPy sees it: typed metadata and tensors as views of the mapping; it knows no architecture."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from localllm.errors import GGUFError
from localllm.gguf.header import ArrayValue, Header, TensorHeader
from localllm.gguf.parts import AnyPath, open_parts
from localllm.gguf.strings import end_of_strings
from localllm.gguf.summary import file_type_name, parameter_count, size_label
from localllm.gguf.types import FLOAT_TYPES, INTEGER_TYPES, ValueType

MAX_LAYERS = 512
T = TypeVar("T", int, float, bool, str)

_DTYPES = {
    ValueType.UINT8: "<u1",
    ValueType.INT8: "<i1",
    ValueType.UINT16: "<u2",
    ValueType.INT16: "<i2",
    ValueType.UINT32: "<u4",
    ValueType.INT32: "<i4",
    ValueType.FLOAT32: "<f4",
    ValueType.UINT64: "<u8",
    ValueType.INT64: "<i8",
    ValueType.FLOAT64: "<f8",
}
_ACCEPTED = {
    int: INTEGER_TYPES,
    float: FLOAT_TYPES,
    bool: frozenset({ValueType.BOOL}),
    str: frozenset({ValueType.STRING}),
}
_REQUIRED: Any = object()


@dataclass(frozen=True)
class TensorInfo(TensorHeader):
    """A tensor in a mapped file; `offset` is absolute in the file `path`."""

    path: Path
    buffer: mmap.mmap = field(repr=False, compare=False)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The tensor's bytes: uint8 [nbytes], contiguous, read-only, not copied. Keeps the mapping alive."""
        if not self.nbytes:
            return np.empty(0, np.uint8)
        return np.frombuffer(self.buffer, np.uint8, count=self.nbytes, offset=self.offset)

    def drop_pages(self) -> None:
        """Tell the system that the pages wholly inside this tensor may leave memory; they are read again if used."""
        first = -(-self.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (self.offset + self.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self.buffer.madvise(mmap.MADV_DONTNEED, first, length)


class Metadata(Mapping[str, Any]):
    """Metadata values; arrays of numbers as read-only NumPy views, of strings as lists, made when first asked for."""

    def __init__(self, header: Header) -> None:
        self._values = header.metadata
        self._arrays: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if not isinstance(value, ArrayValue):
            return value
        if key not in self._arrays:
            self._arrays[key] = _array(value)
        return self._arrays[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def raw(self, key: str) -> ArrayValue | None:
        """The array under `key` before it is read, or None if there is no array there."""
        value = self._values.get(key)
        return value if isinstance(value, ArrayValue) else None

    def forget(self) -> None:
        """Drop the arrays made so far."""
        self._arrays.clear()


def _array(value: ArrayValue) -> Any:
    if value.element_type is ValueType.STRING:
        return value.tolist()
    if not value.length:
        return np.empty(0, np.bool_ if value.element_type is ValueType.BOOL else _DTYPES[value.element_type])
    if value.element_type is ValueType.BOOL:
        return np.frombuffer(value.buffer, np.uint8, count=value.length, offset=value.offset) != 0
    return np.frombuffer(value.buffer, _DTYPES[value.element_type], count=value.length, offset=value.offset)


class GGUFFile:
    """An open model, over all its parts; a context manager.

    `metadata` and `types` (of arrays: the element type) come from the first part, `tensors` from all of them
    in file order. Views given out keep their mapping alive after `close`.
    """

    def __init__(self, headers: Sequence[Header]) -> None:
        self.headers = list(headers)
        self.paths = [header.path for header in headers]
        self.path = self.paths[0]
        self.metadata = Metadata(headers[0])
        self.types = headers[0].types
        self.tensors: dict[str, TensorInfo] = {
            tensor.name: TensorInfo(**vars(tensor), path=header.path, buffer=header.buffer)
            for header in headers
            for tensor in header.tensors.values()
        }

    @property
    def architecture(self) -> str:
        return self.get("general.architecture", str)

    @property
    def file_bytes(self) -> int:
        """Size of all parts together."""
        return sum(header.file_bytes for header in self.headers)

    @functools.cached_property
    def parameter_count(self) -> int:
        return parameter_count(self.tensors.values())

    @property
    def parameter_size(self) -> str:
        """The parameter count as people write it, `8.0B`."""
        return size_label(self.parameter_count)

    @property
    def file_type_name(self) -> str:
        """What the file was quantised to, `Q4_K_M`; guessed from the tensors where the metadata do not say."""
        return file_type_name(self.metadata, self.tensors.values())

    def get(self, key: str, kind: type[T], default: T | None = _REQUIRED) -> T:
        """The scalar under `key` as `kind` (int, float, bool or str); `default` (None is allowed) if it is absent.

        Raises:
            GGUFError: absent without a default, or stored as a value of another kind.
        """
        if key not in self.metadata:
            if default is _REQUIRED:
                raise GGUFError(f"{self.path}: missing key {key!r}, expected {kind.__name__}")
            return cast(T, default)
        value = self.metadata[key]
        if isinstance(value, list | np.ndarray) or self.types[key] not in _ACCEPTED[kind]:
            raise GGUFError(f"{self.path}: key {key!r} is {self._kind_name(key)}, expected {kind.__name__}")
        return kind(value)

    def get_array(self, key: str, kind: type[T], default: Sequence[T] | None = _REQUIRED) -> Any:
        """The array under `key`: NumPy for numbers, a list for strings; `default` if it is absent.

        Raises:
            GGUFError: absent without a default, or not an array of `kind`.
        """
        if key not in self.metadata:
            if default is _REQUIRED:
                raise GGUFError(f"{self.path}: missing key {key!r}, expected an array of {kind.__name__}")
            return default
        value = self.metadata[key]
        if not isinstance(value, list | np.ndarray) or self.types[key] not in _ACCEPTED[kind]:
            raise GGUFError(f"{self.path}: key {key!r} is {self._kind_name(key)}, expected an array of {kind.__name__}")
        return value

    def get_per_layer(self, key: str, kind: type[T], n_layer: int, default: T | None = _REQUIRED) -> list[T]:
        """`n_layer` values: the array under `key`, or its scalar (or `default`) repeated.

        Raises:
            GGUFError: absent without a default, of another kind, or an array of another length.
        """
        if not 0 <= n_layer <= MAX_LAYERS:
            raise GGUFError(f"{self.path}: {n_layer} layers, expected 0 to {MAX_LAYERS}")
        if self.metadata.raw(key) is None:
            return [self.get(key, kind, default)] * n_layer
        values = self.get_array(key, kind)
        if len(values) != n_layer:
            raise GGUFError(
                f"{self.path}: key {key!r} has {len(values)} elements, expected one for each of {n_layer} layers"
            )
        return [kind(value) for value in values]

    def _kind_name(self, key: str) -> str:
        name = self.types[key].name.lower()
        return f"an array of {name}" if self.metadata.raw(key) is not None else name

    def tensor(self, name: str) -> TensorInfo:
        """The tensor called `name`.

        Raises:
            GGUFError: there is none.
        """
        if name not in self.tensors:
            raise GGUFError(f"{self.path}: missing tensor {name!r}")
        return self.tensors[name]

    def drop_pages(self) -> None:
        """Tell the system that the pages of all parts may leave memory; they are read again if used."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for header in self.headers:
                header.buffer.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap the parts; where a view is still in use, its mapping stays until the view is gone."""
        self.metadata.forget()
        for header in self.headers:
            header.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(paths: AnyPath | Sequence[AnyPath]) -> GGUFFile:
    """Open a model: one file, any one part of a split model with its usual names, or all parts in any order.

    Raises:
        GGUFError: a file is not a GGUF or is damaged, or a part is missing, double or foreign.
    """
    return GGUFFile(open_parts(paths, end_of_strings))

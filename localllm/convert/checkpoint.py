"""Finds the tensors of a folder of safetensors files and reads them piece by piece; it knows no model.

    u64 length of the header | header, a JSON object | data

    header: name -> {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end]}, "__metadata__" -> strings

Offsets count from the start of the data. What the `safetensors` library checks is checked here: the tensors fill the
data without holes, overlaps or leftovers, and have the bytes that dtype and shape ask for. (The library itself gives
NumPy no BF16, and maps files whole, whose pages then count as memory of the process.)
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localllm.convert.folder import Folder
from localllm.errors import ConvertError

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format."""
MAX_DIMS = 8
PIECE_BYTES = 1 << 23
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2"}
DTYPES |= {"U64": "<u8", "U32": "<u4", "U16": "<u2", "I8": "i1", "U8": "u1", "BOOL": "u1"}
DTYPES |= {"F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1"}
"""How the elements of a dtype are read; BF16 and F8 as the integers that have their bits."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor, or some rows of one, lies in a file. `offset` is absolute, `shape` outermost first."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.n_elements * np.dtype(DTYPES[self.dtype]).itemsize

    def rows(self, begin: int, end: int) -> StoredTensor:
        """The rows begin .. end - 1."""
        row_bytes = self.nbytes // self.shape[0]
        return replace(self, shape=(end - begin, *self.shape[1:]), offset=self.offset + begin * row_bytes)

    def read(self) -> npt.NDArray[Any]:
        """All of it, in its shape and dtype (see DTYPES).

        Raises:
            ConvertError: the file cannot be read, or is shorter than it was.
        """
        return self._read(0, self.n_elements).reshape(self.shape)

    def pieces(self) -> Iterator[npt.NDArray[Any]]:
        """All of it as flat arrays of at most PIECE_BYTES."""
        n = PIECE_BYTES // np.dtype(DTYPES[self.dtype]).itemsize
        for begin in range(0, self.n_elements, n):
            yield self._read(begin, min(n, self.n_elements - begin))

    def _read(self, begin: int, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(DTYPES[self.dtype])
        try:
            elements: npt.NDArray[Any] = np.fromfile(
                self.path, dtype, count, offset=self.offset + begin * dtype.itemsize
            )
        except OSError as error:
            raise ConvertError(f"{self.path}: cannot be read: {error}") from error
        if len(elements) != count:
            raise ConvertError(f"{self.path}: tensor {self.name!r} ends early: the file was changed meanwhile")
        return elements


def read_checkpoint(folder: Folder) -> dict[str, StoredTensor]:
    """The tensors of a model in the order of their files, by name.

    The files are those that model.safetensors.index.json lists, else model*.safetensors, else those one level down.

    Raises:
        ConvertError: there are none, or a file is missing or damaged.
    """
    listed, folder = _index(folder)
    if listed:
        paths = [folder.path / name for name in dict.fromkeys(sorted(set(listed.values())))]
    else:
        paths = _found(folder.path)
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise ConvertError(f"{path}: tensor {name!r} is in {tensors[name].path.name} as well")
            tensors[name] = tensor
    for name, file in listed.items():
        if name not in tensors or tensors[name].path.name != file:
            raise ConvertError(f"{folder.path / file}: missing tensor {name!r}, which the index expects there")
    return tensors


def _index(folder: Folder) -> tuple[dict[str, str], Folder]:
    """Which file has which tensor, by the index, if there is one here or one level down; and the index' folder."""
    name = "model.safetensors.index.json"
    if not folder.has(name):
        below = [path.parent for path in folder.path.glob(f"*/{name}")]
        if len(below) != 1 or list(folder.path.glob("model*.safetensors")):
            return {}, folder
        folder = Folder(below[0])
    index = folder.json(name)
    listed = index.inner("weight_map").values
    for tensor, file in listed.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise index.error(tensor, file, "the name of a safetensors file beside it")
        if not folder.has(file):
            raise ConvertError(f"{folder.path / file}: missing, expected by {name}", hint="download it again")
    return dict(listed), folder


def _found(path: Path) -> list[Path]:
    for pattern in ("model*.safetensors", "*/model*.safetensors"):
        if found := sorted(path.glob(pattern)):
            if len({file.parent for file in found}) > 1:
                names = ", ".join(str(file.relative_to(path)) for file in found[:3])
                raise ConvertError(f"{path}: safetensors in several folders ({names}), expected one model")
            return found
    if any(path.glob("consolidated*.safetensors")):
        raise ConvertError(
            f"{path}: consolidated.safetensors has its maker's own names, expected model*.safetensors",
            hint="download the files that Hugging Face's transformers loads",
        )
    if any(path.glob("*.bin")) or any(path.glob("*.pth")):
        raise ConvertError(
            f"{path}: PyTorch's files are programs that could do anything when read; expected model*.safetensors",
            hint="download the model's safetensors, or save it as such with transformers",
        )
    raise ConvertError(f"{path}: no model*.safetensors found")


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file in the order of their data.

    Raises:
        ConvertError: the file cannot be read, is truncated, or breaks a rule of the format.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                raise ConvertError(f"{path}: not a safetensors file: it has {len(start)} bytes")
            (length,) = struct.unpack("<Q", start)
            if length > min(MAX_HEADER_BYTES, size - 8):
                raise ConvertError(_no_header(path, start, length, size))
            entries = _parsed(path, file.read(length))
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read: {error.strerror}") from error
    entries.pop("__metadata__", None)
    tensors = [_tensor(path, name, entry, 8 + length) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    end = 8 + length
    for tensor in tensors:
        if tensor.offset != end:
            raise ConvertError(f"{path}: tensor {tensor.name!r} begins at byte {tensor.offset}, expected {end}")
        end += tensor.nbytes
    if end != size:
        what = "truncated" if end > size else "has bytes that belong to no tensor"
        raise ConvertError(f"{path}: {what}: {size} bytes, expected {end}", hint="download it again")
    return {tensor.name: tensor for tensor in tensors}


def _no_header(path: Path, start: bytes, length: int, size: int) -> str:
    if start.startswith(b"version "):
        return f"{path}: a Git LFS pointer, expected a safetensors file; run `git lfs pull` where it came from"
    limit = min(MAX_HEADER_BYTES, size - 8)
    return f"{path}: not a safetensors file, or truncated: its header has {length} bytes, expected up to {limit}"


def _parsed(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            ((double, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise ConvertError(f"{path}: {double!r} is twice in the header")
        return values

    try:
        entries = json.loads(raw.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path}: not a safetensors file: its header is no JSON: {error}") from error
    if not isinstance(entries, dict):
        raise ConvertError(f"{path}: not a safetensors file: its header is no JSON object")
    return entries


def _tensor(path: Path, name: str, entry: Any, data: int) -> StoredTensor:
    def numbers(key: str, most: int) -> tuple[int, ...]:
        value = entry.get(key) if isinstance(entry, dict) else None
        good = isinstance(value, list) and len(value) <= most
        if not good or not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in value or ()):
            raise ConvertError(f"{path}: tensor {name!r}: {key} is {value!r}, expected a list of sizes")
        return tuple(value or ())

    shape, offsets = numbers("shape", MAX_DIMS), numbers("data_offsets", 2)
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ConvertError(f"{path}: tensor {name!r}: dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    tensor = StoredTensor(name, dtype, shape, path, data + (offsets[0] if offsets else 0))
    if len(offsets) != 2 or offsets[1] - offsets[0] != tensor.nbytes:
        raise ConvertError(
            f"{path}: tensor {name!r}: data_offsets {list(offsets)}, expected {tensor.nbytes} bytes for "
            f"{dtype} {list(shape)}"
        )
    return tensor

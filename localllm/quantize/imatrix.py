"""Reads importance matrices, as GGUF or in the older `.dat` form; it knows no model and computes no weights.

GGUF: for a tensor NAME, `NAME.in_sum2` f32 [n_matrices, n_columns], the sums of squares of the activations that met
each column, and `NAME.counts` f32 [n_matrices], of how many. The older form, all little-endian:

    n_entries i32
    n_entries x  name length i32 | name | n_calls i32 | n_values i32 | values f32 [n_values]
    optional     n_chunks i32 | length i32 | name of the text
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from localllm.errors import GGUFError, QuantizeError
from localllm.gguf.file import GGUFFile, TensorInfo, open_gguf
from localllm.gguf.header import MAGIC
from localllm.gguf.types import GGMLType
from localllm.quantize.kept import keeps_type

F32 = npt.NDArray[np.float32]
_I32 = struct.Struct("<i")
_SUMS, _COUNTS = ".in_sum2", ".counts"
_EMBEDDINGS = (
    "token_embd.weight",
    "per_layer_token_embd.weight",
)  # looked up, not multiplied: their weights mean little


@dataclass(frozen=True)
class ImportanceMatrix:
    """Weights by tensor name, f32 [n_matrices x n_columns], and what is known of their making."""

    path: Path
    weights: dict[str, F32]
    datasets: list[str] = field(default_factory=list)
    n_chunks: int = 0

    def weights_of(self, tensor: TensorInfo) -> F32 | None:
        """f32 [n_matrices, n_columns] for a tensor's stack of matrices, or None if it is not in the file.

        Raises:
            QuantizeError: there are more or fewer weights than columns.
        """
        found = self.weights.get(tensor.name)
        if found is None:
            return None
        n_columns, n_matrices = tensor.shape[0], math.prod(tensor.shape[2:])
        if found.size == n_columns * n_matrices:
            return found.reshape(n_matrices, n_columns)
        if tensor.name in _EMBEDDINGS:
            return None
        raise QuantizeError(
            f"{self.path}: {found.size} weights for tensor {tensor.name!r}, expected {n_columns * n_matrices}",
            hint="the importance matrix is of another model",
        )

    def check(self, tensors: Iterable[TensorInfo], architecture: str) -> None:
        """See that it belongs to a model.

        Raises:
            QuantizeError: none of the model's matrices is in it.
        """
        matrices = [tensor.name for tensor in tensors if not keeps_type(tensor, architecture)]
        if matrices and not any(name in self.weights for name in matrices):
            raise QuantizeError(
                f"{self.path}: no weights for any of the model's tensors: it has {next(iter(self.weights))!r} "
                f"and others, expected {matrices[0]!r} and others",
                hint="the importance matrix is of another model",
            )


def read_imatrix(path: Path) -> ImportanceMatrix:
    """Read an importance matrix of either form.

    Raises:
        QuantizeError: the file is neither, is damaged or empty, or a weight is NaN, infinite or negative.
    """
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
        matrix = _read_gguf(path) if is_gguf else _read_dat(path)
    except OSError as error:
        raise QuantizeError(f"{path}: cannot be read: {error.strerror or error}") from error
    except GGUFError as error:
        raise QuantizeError(str(error), hint=error.hint) from error
    for name, weights in matrix.weights.items():
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise QuantizeError(f"{path}: a weight for tensor {name!r} is NaN, infinite or negative")
    return matrix


def _read_gguf(path: Path) -> ImportanceMatrix:
    with open_gguf(path) as gguf:
        weights = {}
        for name in gguf.tensors:
            if name.endswith(_SUMS):
                of = name.removesuffix(_SUMS)
                weights[of] = _averages(path, of, *(_floats(gguf, path, of + part) for part in (_SUMS, _COUNTS)))
        if not weights:
            raise QuantizeError(
                f"{path}: no importance matrix: it has no tensor that ends in {_SUMS!r}",
                hint="an importance matrix comes from llama-imatrix",
            )
        datasets = gguf.get_array("imatrix.datasets", str, [])
        return ImportanceMatrix(path, weights, list(datasets), gguf.get("imatrix.chunk_count", int, 0))


def _floats(gguf: GGUFFile, path: Path, name: str) -> F32:
    tensor = gguf.tensor(name)
    if tensor.type is not GGMLType.F32:
        raise QuantizeError(f"{path}: tensor {name!r} is {tensor.type.name}, expected F32")
    return tensor.data.view("<f4").astype(np.float32)


def _averages(path: Path, name: str, sums: F32, counts: F32) -> F32:
    """Sum ÷ count, for each matrix of a stack; 1 for one that was never used."""
    if not counts.size or sums.size % counts.size:
        raise QuantizeError(f"{path}: {sums.size} sums and {counts.size} counts for tensor {name!r}")
    rows, n = sums.reshape(counts.size, -1), np.rint(counts)[:, None]
    return np.where(n > 0, rows / np.maximum(n, 1), np.float32(1)).astype(np.float32).ravel()


def _read_dat(path: Path) -> ImportanceMatrix:
    cursor = _Cursor(path, path.read_bytes())
    weights: dict[str, F32] = {}
    n_entries = cursor.number("the number of entries", 1)
    for i in range(n_entries):
        name = cursor.take(cursor.number(f"the length of name {i}", 1), f"name {i}").decode("utf-8", "replace")
        n_calls = cursor.number(f"the calls of {name!r}", 0)
        n_values = cursor.number(f"the number of values of {name!r}", 1)
        values = np.frombuffer(cursor.take(4 * n_values, f"the values of {name!r}"), "<f4").astype(np.float32)
        weights[name] = values / np.float32(n_calls or 1)
    if cursor.at_end:
        return ImportanceMatrix(path, weights)
    n_chunks = cursor.number("the number of chunks", 0)
    text = (
        cursor.take(cursor.number("the length of the text's name", 0), "the text's name") if not cursor.at_end else b""
    )
    return ImportanceMatrix(path, weights, [text.decode("utf-8", "replace")] if text else [], n_chunks)


class _Cursor:
    """Reads on in the bytes of a file, and never past its end."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data, self._position = path, data, 0

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    def take(self, n_bytes: int, what: str) -> bytes:
        if n_bytes > len(self._data) - self._position:
            raise QuantizeError(
                f"{self._path}: not an importance matrix, or a damaged one: {what} needs {n_bytes} bytes "
                f"at offset {self._position}, the file ends at {len(self._data)}"
            )
        self._position += n_bytes
        return self._data[self._position - n_bytes : self._position]

    def number(self, what: str, least: int) -> int:
        at = self._position
        (value,) = _I32.unpack(self.take(_I32.size, what))
        if value < least:
            raise QuantizeError(
                f"{self._path}: not an importance matrix, or a damaged one: {what} is {value} "
                f"at offset {at}, expected {least} or more"
            )
        return int(value)

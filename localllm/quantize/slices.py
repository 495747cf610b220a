"""A tensor as pieces of some megabytes, each read, turned and checked for itself; it knows no file that is written.

Pieces end where rows do, and where the matrices of a stack do if each has its own importance. So memory depends on
the pieces and the threads, never on the tensor, and the bytes do not depend on who made which piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import gguf as gguf_package
import numpy as np
import numpy.typing as npt

from kernels_cpu.quantize import quantize_rows
from kernels_cpu.quants.reference import DEQUANTISERS, dequantise_rows
from localllm.errors import QuantizeError
from localllm.gguf.types import GGMLType
from localllm.quantize.plan import Job

Bytes = npt.NDArray[np.uint8]

SLICE_ELEMENTS = 1 << 20
COPY_BYTES = 4 << 20
ROWS_AT_ONCE = 16  # what the quantisers' vectors hold

# Bits of a float whose exponent is all ones, without the sign: infinity, and above it every NaN.
_INFINITY = {GGMLType.F32: 0x7F800000, GGMLType.F16: 0x7C00, GGMLType.BF16: 0x7F80}
_SIGNED = {GGMLType.F32: "<i4", GGMLType.F16: "<i2", GGMLType.BF16: "<i2"}
_DTYPES = {GGMLType.F32: "<f4", GGMLType.F16: "<f2", GGMLType.BF16: "<u2"}


@dataclass(frozen=True)
class Slice:
    """Bytes of a tensor from `start` (counted from the tensor's first); `matrix` is which of its stack they are of."""

    job: Job
    start: int
    n_bytes: int
    matrix: int = 0

    def made(self) -> Bytes:
        """The bytes that the new file gets: uint8 [n].

        Raises:
            QuantizeError: the file cannot be read, or holds a NaN or an infinity here.
        """
        data = _read(self)
        if self.job.is_copy:
            _check_finite(self, data)
            return data
        tensor, importance = self.job.tensor, self.job.importance
        rows = _rows(tensor.type, data, tensor.shape[0])
        try:
            made = quantize_rows(
                self.job.type.name, rows, None if importance is None else importance[self.matrix], n_threads=1
            )
        except ValueError as error:
            raise _bad_values(self, str(error)) from error
        return made.reshape(-1)


def slices_of(job: Job) -> Iterator[Slice]:
    """All of a tensor, in order."""
    if not job.tensor.nbytes:
        return
    if job.is_copy:
        step, spans = COPY_BYTES, [(0, job.tensor.nbytes)]
    else:
        columns = job.tensor.shape[0]
        row_bytes = columns // job.tensor.type.block_size * job.tensor.type.type_size
        step = max(1, SLICE_ELEMENTS // columns // ROWS_AT_ONCE) * ROWS_AT_ONCE * row_bytes
        n_spans = 1 if job.importance is None else len(job.importance)
        length = job.tensor.nbytes // n_spans
        spans = [(i * length, length) for i in range(n_spans)]
    for matrix, (begin, length) in enumerate(spans):
        for start in range(0, length, step):
            yield Slice(job, begin + start, min(step, length - start), matrix)


def compile_quantisers(jobs: Iterable[Job]) -> None:
    """Have each kernel ready before threads ask for it at once, by quantising a block of zeros."""
    kinds = {(job.type, job.tensor.type, job.importance is not None) for job in jobs if not job.is_copy}
    for kind, source, is_weighted in sorted(kinds):
        zeros = np.zeros((1, kind.block_size), _DTYPES.get(source, np.float32))
        quantize_rows(kind.name, zeros, np.ones(kind.block_size, np.float32) if is_weighted else None, n_threads=1)


def _read(piece: Slice) -> Bytes:
    """Reads instead of using the mapping, where a bad sector or a file that shrank would end the process."""
    tensor, data = piece.job.tensor, np.empty(piece.n_bytes, np.uint8)
    left = data.data
    try:
        with tensor.path.open("rb", buffering=0) as file:
            file.seek(tensor.offset + piece.start)
            while left and (n := file.readinto(left)):
                left = left[n:]
    except OSError as error:
        raise QuantizeError(f"{tensor.path}: cannot be read: {error.strerror or error}") from error
    if left:
        raise QuantizeError(f"{tensor.path}: tensor {tensor.name!r}: the file became shorter while it was read")
    return data


def _check_finite(piece: Slice, data: Bytes) -> None:
    tensor = piece.job.tensor
    infinity = _INFINITY.get(tensor.type)
    if infinity is None:
        return
    signed = data.view(_SIGNED[tensor.type])
    unsigned = signed.view(f"<u{signed.itemsize}")
    sign = 1 << (8 * signed.itemsize - 1)
    if signed.max() >= infinity or unsigned.max() >= sign | infinity:
        raise _bad_values(piece, "NaN or infinity")


def _bad_values(piece: Slice, what: str) -> QuantizeError:
    tensor = piece.job.tensor
    return QuantizeError(
        f"{tensor.path}: tensor {tensor.name!r} ({tensor.type.name}) cannot become {piece.job.type.name}, "
        f"from byte {piece.start} of it on: {what}",
        hint="the file is corrupt: download or convert it again",
    )


def _rows(kind: GGMLType, data: Bytes, columns: int) -> npt.NDArray[Any]:
    """[n_rows, columns] as the quantisers take them: float32, float16, or bfloat16's bits as uint16."""
    if kind in _DTYPES:
        return data.view(_DTYPES[kind]).reshape(-1, columns)
    rows = data.reshape(-1, columns // kind.block_size * kind.type_size)
    if int(kind) in DEQUANTISERS:
        return dequantise_rows(rows, int(kind))
    return np.asarray(gguf_package.quants.dequantize(rows, gguf_package.GGMLQuantizationType(int(kind))))

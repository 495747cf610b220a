"""Interleaves a weight matrix for the kernels: GGUF rows in, groups of 16 rows out. It knows no file and no thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels_cpu import KernelError
from kernels_cpu.graph import Weight
from kernels_cpu.quants.format import GROUP_ROWS
from kernels_cpu.quants.table import QuantType, quant_type

# A thread's share of a product is counted in units of 2 groups, and their number must come out even.
UNIT_ROWS = 2 * GROUP_ROWS
# A part and what NumPy makes of it on the way stay in the caches; with smaller ones NumPy's calls are what takes time.
PART_BYTES = 512 << 10


@dataclass(frozen=True)
class PackedShape:
    """How a matrix of a quant type lies in memory once packed: rows padded to 32, columns to whole blocks."""

    quant: QuantType
    n_groups: int
    n_blocks: int

    @property
    def group_bytes(self) -> int:
        """Bytes of 16 rows."""
        return self.n_blocks * self.quant.format.packed_block_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix."""
        return self.n_groups * self.group_bytes


def packed_shape(weight: Weight) -> PackedShape:
    """Raises: KernelError for a type without kernels, or bytes that do not fit the shape."""
    quant = quant_type(weight.type_id, weight.name)
    fmt = quant.format
    if not quant.takes_floats and weight.n_cols % fmt.block_columns:
        raise KernelError(
            f"tensor `{weight.name}`: expected columns in multiples of {fmt.block_columns} for {fmt.name}, "
            f"got {weight.n_cols}"
        )
    n_blocks = -(-weight.n_cols // fmt.block_columns)
    n_groups = 2 * -(-weight.n_rows // UNIT_ROWS)
    return PackedShape(quant, n_groups, n_blocks)


def parts(shape: PackedShape, n_bytes: int = PART_BYTES) -> Iterator[tuple[int, int]]:
    """A matrix in parts of about `n_bytes`: the first group of each, and the one after its last."""
    step = max(1, n_bytes // shape.group_bytes)
    return ((first, min(first + step, shape.n_groups)) for first in range(0, shape.n_groups, step))


def pack_groups(weight: Weight, shape: PackedShape, first: int, end: int) -> npt.NDArray[np.uint8]:
    """The interleaved form of groups first .. end - 1, uint8 [(end - first) * group_bytes]; missing rows are zeros."""
    fmt = shape.quant.format
    rows = weight.data.reshape(weight.n_rows, weight.row_bytes)[first * GROUP_ROWS : end * GROUP_ROWS]
    whole = (end - first) * GROUP_ROWS, shape.n_blocks * fmt.block_bytes
    if rows.shape != whole:
        padded = np.zeros(whole, np.uint8)
        padded[: rows.shape[0], : rows.shape[1]] = rows
        rows = padded
    packed = fmt.pack(rows.reshape(end - first, GROUP_ROWS, shape.n_blocks, fmt.block_bytes))
    return packed.reshape(-1)


def pack(weight: Weight, out: npt.NDArray[np.uint8]) -> None:
    """Write the interleaved form of `weight` to `out`, uint8 [packed_shape(weight).nbytes]."""
    shape = packed_shape(weight)
    for first, end in parts(shape):
        out[first * shape.group_bytes : end * shape.group_bytes] = pack_groups(weight, shape, first, end)

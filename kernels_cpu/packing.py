"""Interleaves a weight matrix for the kernels: GGUF rows in, groups of 16 rows out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels_cpu import KernelError
from kernels_cpu.graph import Weight
from kernels_cpu.quants.format import GROUP_ROWS
from kernels_cpu.quants.table import QuantType, quant_type

# A thread's share of a product is counted in units of 2 groups, and their number must come out even.
UNIT_ROWS = 2 * GROUP_ROWS
GROUPS_AT_ONCE = 64


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


def pack(weight: Weight, out: npt.NDArray[np.uint8]) -> None:
    """Write the interleaved form of `weight` to `out`, uint8 [packed_shape(weight).nbytes]; missing rows are zeros."""
    shape = packed_shape(weight)
    fmt = shape.quant.format
    rows = weight.data.reshape(weight.n_rows, weight.row_bytes)
    target = out.reshape(shape.n_groups, shape.n_blocks, fmt.packed_block_bytes)
    for first in range(0, shape.n_groups, GROUPS_AT_ONCE):
        last = min(first + GROUPS_AT_ONCE, shape.n_groups)
        block = rows[first * GROUP_ROWS : last * GROUP_ROWS]
        whole = (last - first) * GROUP_ROWS, shape.n_blocks * fmt.block_bytes
        if block.shape != whole:
            padded = np.zeros(whole, np.uint8)
            padded[: block.shape[0], : block.shape[1]] = block
            block = padded
        target[first:last] = fmt.pack(block.reshape(last - first, GROUP_ROWS, shape.n_blocks, fmt.block_bytes))

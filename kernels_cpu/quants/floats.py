"""Weights that are floats already: what F32, F16 and BF16 have in common.

Packed, a column of 16 rows is one vector: [columns][16 rows]. Activations stay float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from kernels_cpu.quants.format import GROUP_ROWS, SUB_COLUMNS, Bytes
from kernels_cpu.simd import Builder


@dataclass(frozen=True)
class FloatFormat:
    """A float type of `element_bytes`; `emit_column(b, p, k)` gives column k of 16 rows at p as <16 x f32>."""

    name: str
    type_id: int
    element_bytes: int
    emit_column: Callable[[Builder, ir.Value, int], ir.Value]

    # A block is 32 columns, as for the quantised types.
    block_columns = SUB_COLUMNS

    @property
    def block_bytes(self) -> int:
        """GGUF bytes of 32 columns of a row."""
        return SUB_COLUMNS * self.element_bytes

    @property
    def packed_block_bytes(self) -> int:
        """Bytes of 16 rows of 32 columns."""
        return GROUP_ROWS * SUB_COLUMNS * self.element_bytes

    def pack(self, v: Bytes) -> Bytes:
        """uint8 [g, 16, nb, 32·e] -> [g, nb, 16·32·e]."""
        g, r, nb, n = v.shape
        elements = np.ascontiguousarray(v).view(f"u{self.element_bytes}")
        packed = np.ascontiguousarray(elements.transpose(0, 2, 3, 1))
        return packed.view(np.uint8).reshape(g, nb, r * n)

"""F32: The GGUF bytes as they are."""

from __future__ import annotations

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.floats import FloatFormat
from kernels_cpu.simd import V_F32X16, Builder, emit_load, ir


def _column(b: Builder, p: ir.Value, k: int) -> ir.Value:
    return emit_load(b, V_F32X16, p, 64 * k)


FORMAT = FloatFormat(name="F32", type_id=0, element_bytes=4, emit_column=_column)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

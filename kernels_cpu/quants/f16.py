"""F16: IEEE halves."""

from __future__ import annotations

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.floats import FloatFormat
from kernels_cpu.simd import I16, Builder, emit_half_to_float, emit_load, ir


def _column(b: Builder, p: ir.Value, k: int) -> ir.Value:
    return emit_half_to_float(b, emit_load(b, ir.VectorType(I16, 16), p, 32 * k))


FORMAT = FloatFormat(name="F16", type_id=1, element_bytes=2, emit_column=_column)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

"""BF16: The upper halves of float32."""

from __future__ import annotations

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.floats import FloatFormat
from kernels_cpu.simd import I16, V_F32X16, V_I32X16, Builder, const, emit_load, ir


def _column(b: Builder, p: ir.Value, k: int) -> ir.Value:
    return b.bitcast(
        b.shl(b.zext(emit_load(b, ir.VectorType(I16, 16), p, 32 * k), V_I32X16), const(V_I32X16, 16)), V_F32X16
    )


FORMAT = FloatFormat(name="BF16", type_id=30, element_bytes=2, emit_column=_column)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

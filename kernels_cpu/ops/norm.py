"""The arithmetic of RMS norms; it does not know what they are taken of."""

from __future__ import annotations

import math

from llvmlite import ir
from numba import float32, types
from numba.extending import intrinsic

from kernels_cpu.simd import (
    I64,
    V_F32X16,
    const,
    emit_fma,
    emit_load,
    emit_loop,
    emit_reduce,
    f32x16,
    ld_f32,
    load,
    splat,
    st_f32,
    store,
)
from kernels_cpu.subroutine import subroutine


@intrinsic
def _sum_squares(tyctx, x, n):  # type: ignore[no-untyped-def]
    """Sum of the squares of n floats at x, n a multiple of 16: in 4 x 16 float32 lanes."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        x, n = a

        def square(i: ir.Value, offset: int, total: ir.Value) -> ir.Value:
            v = emit_load(b, V_F32X16, b.add(x, b.mul(i, const(I64, 4))), offset)
            return emit_fma(b, v, v, total)

        in_fours = b.and_(n, const(I64, -64))
        sums = emit_loop(
            b,
            const(I64, 0),
            in_fours,
            64,
            [const(V_F32X16, 0.0)] * 4,
            lambda i, s: [square(i, 64 * k, s[k]) for k in range(4)],
        )
        sums[0] = emit_loop(b, in_fours, n, 16, sums[:1], lambda i, s: [square(i, 0, s[0])])[0]
        total = b.fadd(b.fadd(sums[0], sums[1]), b.fadd(sums[2], sums[3]))
        return emit_reduce(b, total, b.fadd)

    return types.float32(types.int64, types.int64), gen


@subroutine(types.float32, inlined=True)
def inverse_rms(x: int, n_loaded: int, n_cols: int, eps: float) -> float:
    """1 / sqrt(mean(x^2) + eps) of n_cols floats at x, as float32. What is loaded beyond them must be zeros.

    Squares are summed in 4 x 16 float32 lanes as far as n_loaded is a multiple of 16, the rest in float64.
    """
    n_vector = n_loaded // 16 * 16
    total = float(_sum_squares(x, n_vector))
    for i in range(n_vector, n_loaded):
        v = float(ld_f32(x + 4 * i))
        total += v * v
    return float32(1.0 / math.sqrt(total / n_cols + eps))


@subroutine()
def norm_head(x: int, w: int, out: int, n: int, eps: float) -> None:
    """out[:n] = x * w / sqrt(mean(x^2) + eps), for any n; out may be x."""
    r = inverse_rms(x, n, n, eps)
    rs = splat(f32x16, r)
    n_vector = n // 16 * 16
    for i in range(0, n_vector, 16):
        store(out + 4 * i, load(f32x16, x + 4 * i) * rs * load(f32x16, w + 4 * i))
    for i in range(n_vector, n):
        st_f32(out + 4 * i, ld_f32(x + 4 * i) * r * ld_f32(w + 4 * i))

"""RMS norms of rows and of heads; it does not know what follows them."""

from __future__ import annotations

import math

from llvmlite import ir
from numba import float32, njit, types
from numba.extending import intrinsic

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, share
from kernels_cpu.simd import (
    I64,
    V_F32X16,
    const,
    emit_fma,
    emit_load,
    emit_loop,
    emit_reduce,
    f32_bits,
    f32x16,
    ld_f32,
    ld_i64,
    load,
    splat,
    st_f32,
    store,
)


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


@njit
def _norm(x: int, w: int, out: int, n: int, eps: float) -> None:
    """out[:n] = x * w / sqrt(mean(x^2) + eps). Squares are summed in 4 x 16 float32 lanes, the tail in float64."""
    n_vector = n // 16 * 16
    total = float(_sum_squares(x, n_vector))
    for i in range(n_vector, n):
        v = float(ld_f32(x + 4 * i))
        total += v * v
    r = float32(1.0 / math.sqrt(total / n + eps))
    rs = splat(f32x16, r)
    for i in range(0, n_vector, 16):
        store(out + 4 * i, load(f32x16, x + 4 * i) * rs * load(f32x16, w + 4 * i))
    for i in range(n_vector, n):
        st_f32(out + 4 * i, ld_f32(x + 4 * i) * r * ld_f32(w + 4 * i))


@kernel
def rms_norm(row: int, thread: int, n_threads: int) -> None:
    """x * w / sqrt(mean(x^2) + eps) of each row, split by rows.

    Arguments: count, x, x_stride, w (float32 [n_cols]), out, out_stride, n_cols, eps_bits. Out may be x.
    """
    n = ld_i64(arg(row, 0))
    x, x_stride, w, out, out_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4), arg(row, 5)
    n_cols, eps = arg(row, 6), float(f32_bits(arg(row, 7)))
    for i in range(share(n, thread, n_threads), share(n, thread + 1, n_threads)):
        _norm(x + i * x_stride, w, out + i * out_stride, n_cols, eps)


@kernel
def head_norm(row: int, thread: int, n_threads: int) -> None:
    """RMS norm of each run of head_dim columns, split by (row, head).

    Arguments: count, x, x_stride, w (float32 [head_dim]), out, out_stride, n_heads, head_dim, eps_bits. Out may be x.
    """
    n = ld_i64(arg(row, 0))
    x, x_stride, w, out, out_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4), arg(row, 5)
    n_heads, head_dim, eps = arg(row, 6), arg(row, 7), float(f32_bits(arg(row, 8)))
    for item in range(share(n * n_heads, thread, n_threads), share(n * n_heads, thread + 1, n_threads)):
        i = item // n_heads
        column = 4 * head_dim * (item - i * n_heads)
        _norm(x + i * x_stride + column, w, out + i * out_stride + column, head_dim, eps)

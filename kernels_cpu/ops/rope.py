"""Rotary position embedding of queries and keys, in both pairings; the angles come as tables."""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, share
from kernels_cpu.simd import (
    F32,
    emit_load,
    emit_store,
    f32x16,
    fma,
    lane_swap,
    ld_f32,
    ld_i32,
    ld_i64,
    load,
    load_twice,
    negate_even,
    st_f32,
    store,
    zero,
)


@intrinsic
def _turn(tyctx, x, out, distance, cos, sin):  # type: ignore[no-untyped-def]
    """One pair of floats, at x and x + distance, turned by the angle whose cosine and sine are at cos and sin."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        x, out, distance, cos, sin = a
        p, q = emit_load(b, F32, x), emit_load(b, F32, b.add(x, distance))
        c, s = emit_load(b, F32, cos), emit_load(b, F32, sin)
        emit_store(b, b.fsub(b.fmul(p, c), b.fmul(q, s)), out)
        emit_store(b, b.fadd(b.fmul(p, s), b.fmul(q, c)), b.add(out, distance))
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 5), gen


@kernel
def rope_interleaved(row: int, thread: int, n_threads: int) -> None:
    """Turns pairs of columns (2i, 2i + 1) of each head by the row's position, split by (row, head).

    Arguments: count, x, x_stride, out, out_stride, n_heads, head_dim, n_rot, positions, cos, sin, the last two float32
    [n_ctx, n_rot / 2]. Columns from n_rot on are kept. Out may be x.
    """
    n = ld_i64(arg(row, 0))
    x, x_stride, out, out_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4)
    n_heads, head_dim, n_rot = arg(row, 5), arg(row, 6), arg(row, 7)
    for item in range(share(n * n_heads, thread, n_threads), share(n * n_heads, thread + 1, n_threads)):
        i = item // n_heads
        column = 4 * head_dim * (item - i * n_heads)
        p, o = x + i * x_stride + column, out + i * out_stride + column
        angles = 2 * n_rot * ld_i32(arg(row, 8) + 4 * i)
        cos, sin = arg(row, 9) + angles, arg(row, 10) + angles
        k = 0
        while k + 16 <= n_rot:
            v = load(f32x16, p + 4 * k)
            turned = lane_swap(v) * negate_even(load_twice(sin + 2 * k))
            store(o + 4 * k, fma(v, load_twice(cos + 2 * k), turned))
            k += 16
        while k < n_rot:
            _turn(p + 4 * k, o + 4 * k, 4, cos + 2 * k, sin + 2 * k)
            k += 2
        if p != o:
            for k in range(n_rot, head_dim):
                st_f32(o + 4 * k, ld_f32(p + 4 * k))


@kernel
def rope_half(row: int, thread: int, n_threads: int) -> None:
    """Turns pairs of columns (i, i + n_rot / 2) of each head by the row's position, split by (row, head).

    Arguments: count, x, x_stride, out, out_stride, n_heads, head_dim, n_rot, positions, cos, sin, the last two float32
    [n_ctx, n_rot / 2]. Columns from n_rot on are kept. Out may be x.
    """
    n = ld_i64(arg(row, 0))
    x, x_stride, out, out_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4)
    n_heads, head_dim, n_rot = arg(row, 5), arg(row, 6), arg(row, 7)
    n_pairs = n_rot // 2
    half = 4 * n_pairs
    for item in range(share(n * n_heads, thread, n_threads), share(n * n_heads, thread + 1, n_threads)):
        i = item // n_heads
        column = 4 * head_dim * (item - i * n_heads)
        p, o = x + i * x_stride + column, out + i * out_stride + column
        angles = half * ld_i32(arg(row, 8) + 4 * i)
        cos, sin = arg(row, 9) + angles, arg(row, 10) + angles
        k = 0
        while k + 16 <= n_pairs:
            va, vb = load(f32x16, p + 4 * k), load(f32x16, p + half + 4 * k)
            vc, vs = load(f32x16, cos + 4 * k), load(f32x16, sin + 4 * k)
            store(o + 4 * k, fma(va, vc, zero(f32x16) - vb * vs))
            store(o + half + 4 * k, fma(vb, vc, va * vs))
            k += 16
        while k < n_pairs:
            _turn(p + 4 * k, o + 4 * k, half, cos + 4 * k, sin + 4 * k)
            k += 1
        if p != o:
            for k in range(n_rot, head_dim):
                st_f32(o + 4 * k, ld_f32(p + 4 * k))

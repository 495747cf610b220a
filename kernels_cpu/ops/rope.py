"""What happens to each head of queries and keys: RMS norm and rotary position embedding; the angles come as tables."""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, share
from kernels_cpu.ops.norm import norm_head
from kernels_cpu.simd import (
    F32,
    emit_load,
    emit_store,
    f32_bits,
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
from kernels_cpu.subroutine import subroutine


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


@subroutine(inlined=True)
def _turn_neighbours(p: int, o: int, n_rot: int, cos: int, sin: int) -> None:
    """Turns pairs of columns (2i, 2i + 1) of the head at p, into o."""
    k = 0
    while k + 16 <= n_rot:
        v = load(f32x16, p + 4 * k)
        turned = lane_swap(v) * negate_even(load_twice(sin + 2 * k))
        store(o + 4 * k, fma(v, load_twice(cos + 2 * k), turned))
        k += 16
    while k < n_rot:
        _turn(p + 4 * k, o + 4 * k, 4, cos + 2 * k, sin + 2 * k)
        k += 2


@subroutine(inlined=True)
def _turn_halves(p: int, o: int, n_rot: int, cos: int, sin: int) -> None:
    """Turns pairs of columns (i, i + n_rot / 2) of the head at p, into o."""
    n_pairs = n_rot // 2
    half, k = 4 * n_pairs, 0
    while k + 16 <= n_pairs:
        va, vb = load(f32x16, p + 4 * k), load(f32x16, p + half + 4 * k)
        vc, vs = load(f32x16, cos + 4 * k), load(f32x16, sin + 4 * k)
        store(o + 4 * k, fma(va, vc, zero(f32x16) - vb * vs))
        store(o + half + 4 * k, fma(vb, vc, va * vs))
        k += 16
    while k < n_pairs:
        _turn(p + 4 * k, o + 4 * k, half, cos + 4 * k, sin + 4 * k)
        k += 1


@subroutine(inlined=True)
def _run(row, thread, n_threads, turn):  # type: ignore[no-untyped-def]
    """A kernel's body: each head normed, where w is not 0, and turned by its row's position, where n_rot is not 0.

    Arguments: count, x, out, stride, n_heads, head_dim, w (float32 [head_dim]), eps_bits, n_rot, positions, cos, sin,
    the last two float32 [n_ctx, n_rot / 2]. Columns from n_rot on are not turned. Out may be x. Split by (row, head).
    """
    n = ld_i64(arg(row, 0))
    n_heads, head_dim, w, n_rot = arg(row, 4), arg(row, 5), arg(row, 6), arg(row, 8)
    for item in range(share(n * n_heads, thread, n_threads), share(n * n_heads, thread + 1, n_threads)):
        i = item // n_heads
        head = item - i * n_heads
        at = i * arg(row, 3) + 4 * head_dim * head
        p, o = arg(row, 1) + at, arg(row, 2) + at
        if w != 0:
            norm_head(p, w, o, head_dim, float(f32_bits(arg(row, 7))))
            p = o
        if n_rot != 0:
            angles = 2 * n_rot * ld_i32(arg(row, 9) + 4 * i)
            turn(p, o, n_rot, arg(row, 10) + angles, arg(row, 11) + angles)
        if p != o:
            for k in range(n_rot, head_dim):
                st_f32(o + 4 * k, ld_f32(p + 4 * k))


@kernel
def rope_interleaved(row: int, thread: int, n_threads: int) -> None:
    """Norm of heads and rotation of pairs of columns (2i, 2i + 1): see _run."""
    _run(row, thread, n_threads, _turn_neighbours)


@kernel
def rope_half(row: int, thread: int, n_threads: int) -> None:
    """Norm of heads and rotation of pairs of columns (i, i + n_rot / 2): see _run."""
    _run(row, thread, n_threads, _turn_halves)

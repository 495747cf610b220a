"""The orthonormal Walsh-Hadamard transform of floats in memory, and the copy it works on; not what they are."""

from __future__ import annotations

from llvmlite import ir
from numba import float32
from numba.extending import intrinsic

from kernels_cpu.ops import round_up
from kernels_cpu.simd import I32, const, emit_shuffle, f32x16, ld_f32, load, splat, st_f32, store, zero
from kernels_cpu.subroutine import subroutine


@intrinsic
def _turn_lanes(tyctx, x):  # type: ignore[no-untyped-def]
    """Sums and differences of lanes 1, 2, 4 and 8 apart."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        (y,) = a
        words = ir.VectorType(I32, 16)
        for step in (1, 2, 4, 8):
            other = emit_shuffle(b, y, [i ^ step for i in range(16)])
            signs = const(words, [-(1 << 31) if i & step else 0 for i in range(16)])
            y = b.fadd(other, b.bitcast(b.xor(b.bitcast(y, words), signs), y.type))
        return y

    return x(x), gen


@subroutine()
def copy_padded(x: int, to: int, head_dim: int) -> None:
    """head_dim floats from x to `to`, and zeros up to a multiple of 32."""
    n_vector = head_dim // 16 * 16
    for d in range(0, n_vector, 16):
        store(to + 4 * d, load(f32x16, x + 4 * d))
    for d in range(n_vector, round_up(head_dim, 32), 16):
        store(to + 4 * d, zero(f32x16))
    for d in range(n_vector, head_dim):
        st_f32(to + 4 * d, ld_f32(x + 4 * d))


@subroutine()
def rotate(x: int, n: int, size: int) -> None:
    """Turns each run of `size` of the n floats at address x, in place. size is a power of 2 from 16 on, n its multiple.

    As kernels_cpu.kv_rounding.rotated: stages of elements 1, 2, 4, ... apart, then times 1 / sqrt(size).
    """
    for i in range(x, x + 4 * n, 64):
        store(i, _turn_lanes(load(f32x16, i)))
    step = 64
    while step < 4 * size:
        for start in range(x, x + 4 * n, 2 * step):
            for i in range(start, start + step, 64):
                a, b = load(f32x16, i), load(f32x16, i + step)
                store(i, a + b)
                store(i + step, a - b)
        step *= 2
    factor = splat(f32x16, float32(float32(size) ** float32(-0.5)))
    for i in range(x, x + 4 * n, 64):
        store(i, load(f32x16, i) * factor)

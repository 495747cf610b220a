"""Activations of a feed-forward layer without a gate; they do not know the layers around them."""

from __future__ import annotations

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, share
from kernels_cpu.ops.quantize import write_block
from kernels_cpu.simd import f32x16, fma, ld_i64, load, select_less, splat, vabs, vexp, zero
from kernels_cpu.subroutine import subroutine


@subroutine(f32x16, inlined=True)
def _normal_tail(a: object) -> object:
    """(1 - erf(a / sqrt(2))) / 2 for a >= 0, the share of a normal distribution beyond a: absolute error below 2e-7.

    Abramowitz and Stegun, 7.1.26.
    """
    one = splat(f32x16, 1.0)
    t = one / fma(a, splat(f32x16, 0.23164190), one)  # 0.3275911 sqrt(1/2)
    p = fma(splat(f32x16, 1.061405429), t, splat(f32x16, -1.453152027))
    p = fma(p, t, splat(f32x16, 1.421413741))
    p = fma(p, t, splat(f32x16, -0.284496736))
    p = fma(p, t, splat(f32x16, 0.254829592))
    return splat(f32x16, 0.5) * p * t * vexp(splat(f32x16, -0.5) * a * a)


@subroutine(f32x16, inlined=True)
def _gelu(x: object) -> object:
    """x (1 + erf(x / sqrt(2))) / 2"""
    tail = _normal_tail(vabs(x))
    return x * select_less(x, zero(f32x16), tail, splat(f32x16, 1.0) - tail)


@kernel
def gelu(row: int, thread: int, n_threads: int) -> None:
    """x (1 + erf(x / sqrt(2))) / 2, split by columns.

    Arguments: count, n_cols, x, floats, quantised, quantised_stride, bits. Rows of floats lie 32-column blocks after
    one another, without gaps; `floats` is 0 or may be x, bits are 0, 8 or 16.
    """
    n, n_blocks, bits = ld_i64(arg(row, 0)), (arg(row, 1) + 31) // 32, arg(row, 6)
    for i in range(n):
        x = arg(row, 2) + 128 * n_blocks * i
        floats = arg(row, 3) + 128 * n_blocks * i if arg(row, 3) != 0 else 0
        quantised = arg(row, 4) + arg(row, 5) * i
        for k in range(share(n_blocks, thread, n_threads), share(n_blocks, thread + 1, n_threads)):
            a, b = _gelu(load(f32x16, x + 128 * k)), _gelu(load(f32x16, x + 128 * k + 64))
            write_block(floats, quantised, bits, k, a, b)

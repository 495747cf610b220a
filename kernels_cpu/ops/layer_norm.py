"""What happens to whole rows around a layer norm, in one pass; it does not know which layer the rows belong to."""

from __future__ import annotations

import math
from functools import partial

from numba import float32, types

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, copy_of, run_of_rows
from kernels_cpu.ops.quantize import write_block
from kernels_cpu.simd import f32_bits, f32x16, fma, hsum, ld_f32, ld_i64, load, splat, store
from kernels_cpu.subroutine import subroutine


@subroutine(types.float64, inlined=True)
def _mean(x: int, n: int) -> float:
    """The mean of n floats at x: sums in 4 x 16 float32 lanes, the rest in float64."""
    a = b = c = d = splat(f32x16, 0.0)
    in_fours, in_ones = n // 64 * 64, n // 16 * 16
    for i in range(0, 4 * in_fours, 256):
        a, b = a + load(f32x16, x + i), b + load(f32x16, x + i + 64)
        c, d = c + load(f32x16, x + i + 128), d + load(f32x16, x + i + 192)
    for i in range(4 * in_fours, 4 * in_ones, 64):
        a = a + load(f32x16, x + i)
    total = float(hsum((a + b) + (c + d)))
    for i in range(in_ones, n):
        total += float(ld_f32(x + 4 * i))
    return total / n


@subroutine(types.float64, inlined=True)
def _variance(x: int, n: int, mean: float) -> float:
    """The mean of the squared distances from `mean` of n floats at x, summed as in _mean."""
    a = b = c = d = splat(f32x16, 0.0)
    m = splat(f32x16, float32(mean))
    in_fours, in_ones = n // 64 * 64, n // 16 * 16
    for i in range(0, 4 * in_fours, 256):
        p, q = load(f32x16, x + i) - m, load(f32x16, x + i + 64) - m
        r, s = load(f32x16, x + i + 128) - m, load(f32x16, x + i + 192) - m
        a, b, c, d = fma(p, p, a), fma(q, q, b), fma(r, r, c), fma(s, s, d)
    for i in range(4 * in_fours, 4 * in_ones, 64):
        p = load(f32x16, x + i) - m
        a = fma(p, p, a)
    total = float(hsum((a + b) + (c + d)))
    for i in range(in_ones, n):
        v = float(ld_f32(x + 4 * i)) - float(float32(mean))
        total += v * v
    return total / n


@subroutine(inlined=True)
def _sum(x: int, shift: int, addend: int, out: int, n_blocks: int) -> None:
    """out = x + shift + addend, of which those at 0 are left out."""
    for at in range(0, 128 * n_blocks, 64):
        y = load(f32x16, x + at)
        if shift != 0:
            y = y + load(f32x16, shift + at)
        if addend != 0:
            y = y + load(f32x16, addend + at)
        store(out + at, y)


@partial(kernel, cost=4)
def layer_rows(row: int, thread: int, n_threads: int) -> None:
    """Addition of a vector and of other rows, layer norm, quantising; what has an address of 0 (or bits of 0) is left
    out:

        sum = y = x + shift + addend
        z = (y - mean(y)) * w / sqrt(mean((y - mean(y))^2) + eps) + b
        floats = z; quantised = z in blocks of 32 columns (bits: 0, 8 or 16)

    Arguments: count, n_cols, x, x_own, shift, addend, addend_own, sum, w, b, eps_bits, floats, own, quantised,
    quantised_stride, quantised_own, bits. Rows of floats lie 32-column blocks after one another, without gaps. Shift
    and addend need a sum, which may be in the place of x or the addend; shift, w and b are float32 [32 n_blocks], zero
    from n_cols on, and b is there where w is. `own` belongs to sum and floats. Split by rows, or, where a result has
    own copies, every thread for itself.
    """
    n, n_cols, bits = ld_i64(arg(row, 0)), arg(row, 1), arg(row, 16)
    n_blocks = (n_cols + 31) // 32
    stride = 128 * n_blocks
    x, addend = copy_of(thread, arg(row, 2), arg(row, 3), n), copy_of(thread, arg(row, 5), arg(row, 6), n)
    total = copy_of(thread, arg(row, 7), arg(row, 12), n)
    quantised = copy_of(thread, arg(row, 13), arg(row, 15), n)
    w, b = arg(row, 8), arg(row, 9)
    first, end = run_of_rows(thread, n_threads, n, arg(row, 15) + arg(row, 12))
    for i in range(first, end):
        y = x + i * stride
        if arg(row, 7) != 0:
            y = total + i * stride
            _sum(x + i * stride, arg(row, 4), addend + i * stride if arg(row, 5) != 0 else 0, y, n_blocks)
        if w == 0 and bits == 0 and arg(row, 11) == 0:
            continue
        mean, scale = float32(0.0), float32(1.0)
        if w != 0:
            wide = _mean(y, n_cols)
            mean = float32(wide)
            scale = float32(1.0 / math.sqrt(_variance(y, n_cols, wide) + float(f32_bits(arg(row, 10)))))
        m, r = splat(f32x16, mean), splat(f32x16, scale)
        floats = copy_of(thread, arg(row, 11), arg(row, 12), n) + i * stride if arg(row, 11) != 0 else 0
        for k in range(n_blocks):
            p, q = load(f32x16, y + 128 * k), load(f32x16, y + 128 * k + 64)
            if w != 0:
                p = (p - m) * r * load(f32x16, w + 128 * k) + load(f32x16, b + 128 * k)
                q = (q - m) * r * load(f32x16, w + 128 * k + 64) + load(f32x16, b + 128 * k + 64)
            write_block(floats, quantised + i * arg(row, 14), bits, k, p, q)

"""Activations as integers with a scale for every 32 columns, the input of linear layers."""

from __future__ import annotations

from numba import float32, int32, njit

from kernels_cpu.compile import kernel
from kernels_cpu.ops import COLUMNS, arg, share
from kernels_cpu.simd import (
    bitcast,
    even_then_odd,
    f32x16,
    fptosi,
    hmax,
    hsum,
    i8x16,
    i16x16,
    i32x16,
    ld_i64,
    load,
    splat,
    st_f32,
    st_i32,
    store,
    trunc,
    vabs,
    vmax,
    vmin,
    vrint,
    word_f32,
)

BLOCK = 32
"""Columns that share a scale."""

SMALLEST = 1e-33
"""Blocks whose largest magnitude is below this count as zero: the inverse of their scale would overflow."""


def quantized_row_bytes(n_blocks: int, q_bytes: int) -> int:
    """Bytes of one quantised row: `q_bytes` (1 or 2) a column, and five 4-byte words a block."""
    return n_blocks * (BLOCK * q_bytes + 20)


@njit(inline="always")
def _to_integers(x: object, inverse: float, levels: float) -> object:
    """rint(x * inverse) within +-levels as i32x16; NaN becomes some integer in that range."""
    limit = splat(f32x16, levels)
    y = vrint(vmin(vmax(x * splat(f32x16, inverse), splat(f32x16, -levels)), limit))
    return fptosi(i32x16, y)


@njit(inline="always")
def _scales(a: object, b: object, levels: float) -> tuple[float, float]:
    """Scale d and inverse of a block of two f32x16. The largest magnitude is found among the bits of |x|, where NaN
    is largest of all: a block with NaN gets d = NaN."""
    largest = word_f32(hmax(vmax(bitcast(i32x16, vabs(a)), bitcast(i32x16, vabs(b)))))
    if largest < SMALLEST:
        return float32(0.0), float32(0.0)
    return largest / float32(levels), float32(levels) / largest


@njit(inline="always")
def _finish_block(d: float, i0: object, i1: object, words: int, n_blocks: int, k: int) -> None:
    """Write a block's scale and sums: arrays d, s, isum [n_blocks] and isum16 [2 n_blocks] begin at `words`."""
    sum0, sum1 = hsum(i0), hsum(i1)
    total = int32(sum0 + sum1)
    st_f32(words + 4 * k, d)
    st_f32(words + 4 * (n_blocks + k), d * float32(total))
    st_i32(words + 4 * (2 * n_blocks + k), total)
    st_i32(words + 4 * (3 * n_blocks + 2 * k), sum0)
    st_i32(words + 4 * (3 * n_blocks + 2 * k) + 4, sum1)


@njit(inline="always")
def _split(row: int, thread: int, n_threads: int) -> tuple[int, int, int, int]:
    """First and end row, first and end block, of a thread's share in the mode of the tape's row."""
    n, n_blocks, mode = ld_i64(arg(row, 0)), arg(row, 5), arg(row, 6)
    if mode == COLUMNS:
        return 0, n, share(n_blocks, thread, n_threads), share(n_blocks, thread + 1, n_threads)
    return share(n, thread, n_threads), share(n, thread + 1, n_threads), 0, n_blocks


@kernel
def quantize_q8(row: int, thread: int, n_threads: int) -> None:
    """Blocks of 32 columns as int8: d = max|x| / 127, q = rint(x * (127 / max|x|)); split by rows or columns.

    Arguments: count, x, x_stride, out, out_stride, n_blocks, mode. A row of `out`:
    [q int8 32 nb][d f32 nb][s f32 nb: d * float(sum of q)][isum i32 nb: sum of q][isum16 i32 2 nb: of each 16].
    A block of zeros has d = 0 and q = 0; one with NaN or infinity has such a d.
    """
    x, x_stride, out, out_stride, n_blocks = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4), arg(row, 5)
    first, end, start, stop = _split(row, thread, n_threads)
    for i in range(first, end):
        words = out + i * out_stride + 32 * n_blocks
        for k in range(start, stop):
            a, b = load(f32x16, x + i * x_stride + 128 * k), load(f32x16, x + i * x_stride + 128 * k + 64)
            d, inverse = _scales(a, b, 127.0)
            i0, i1 = _to_integers(a, inverse, 127.0), _to_integers(b, inverse, 127.0)
            store(out + i * out_stride + 32 * k, trunc(i8x16, i0))
            store(out + i * out_stride + 32 * k + 16, trunc(i8x16, i1))
            _finish_block(d, i0, i1, words, n_blocks, k)


@kernel
def quantize_q16(row: int, thread: int, n_threads: int) -> None:
    """Blocks of 32 columns as int16: d = max|x| / 32767, q = rint(x * (32767 / max|x|)); split by rows or columns.

    Arguments: count, x, x_stride, out, out_stride, n_blocks, mode. A row of `out`:
    [q int16 32 nb][d f32 nb][s f32 nb: d * float(sum of q)][isum i32 nb: sum of q][isum16 i32 2 nb: of each 16].
    Within each 4 columns q holds the even ones first: 0 2 1 3. Products take even and odd columns apart.
    A block of zeros has d = 0 and q = 0; one with NaN or infinity has such a d.
    """
    x, x_stride, out, out_stride, n_blocks = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4), arg(row, 5)
    first, end, start, stop = _split(row, thread, n_threads)
    for i in range(first, end):
        words = out + i * out_stride + 64 * n_blocks
        for k in range(start, stop):
            a, b = load(f32x16, x + i * x_stride + 128 * k), load(f32x16, x + i * x_stride + 128 * k + 64)
            d, inverse = _scales(a, b, 32767.0)
            i0, i1 = _to_integers(a, inverse, 32767.0), _to_integers(b, inverse, 32767.0)
            store(out + i * out_stride + 64 * k, even_then_odd(trunc(i16x16, i0)))
            store(out + i * out_stride + 64 * k + 32, even_then_odd(trunc(i16x16, i1)))
            _finish_block(d, i0, i1, words, n_blocks, k)

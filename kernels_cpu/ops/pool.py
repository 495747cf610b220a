"""One row for each whole sequence of a step; it does not know what the rows stand for."""

from __future__ import annotations

from numba import float32, int64

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, share
from kernels_cpu.simd import f32x16, ld_i32, ld_i64, load, splat, store

POOLINGS = {"mean": 0, "cls": 1, "last": 2}
"""Values of the argument `kind`."""


@kernel
def pool(row: int, thread: int, n_threads: int) -> None:
    """The mean of a sequence's rows, its first or its last, for each output row.

    Arguments: count (of output rows), n_cols, count of x, x, kind, output_rows, positions, slots, out. Rows lie
    32-column blocks after one another, without gaps; a sequence's rows follow one another from position 0 on. Split by
    output rows. Rows are added up in order, in float32.
    """
    n_out, stride, n = ld_i64(arg(row, 0)), 128 * ((arg(row, 1) + 31) // 32), ld_i64(arg(row, 2))
    x, kind, slots = arg(row, 3), arg(row, 4), arg(row, 7)
    for i in range(share(n_out, thread, n_threads), share(n_out, thread + 1, n_threads)):
        r = int64(ld_i32(arg(row, 5) + 4 * i))
        first, end, slot = r - ld_i32(arg(row, 6) + 4 * r), r + 1, ld_i32(slots + 4 * r)
        while end < n and ld_i32(slots + 4 * end) == slot:
            end += 1
        if kind == 1:
            end = first + 1
        if kind == 2:
            first = end - 1
        divisor = splat(f32x16, float32(end - first))
        for column in range(0, stride, 64):
            total = load(f32x16, x + first * stride + column)
            for j in range(first + 1, end):
                total = total + load(f32x16, x + j * stride + column)
            store(arg(row, 8) + i * stride + column, total / divisor)

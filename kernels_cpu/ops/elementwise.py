"""Operations on single elements, and the choice of output rows; they know nothing of heads or positions."""

from __future__ import annotations

from typing import Any

from numba import int64

from kernels_cpu.compile import kernel
from kernels_cpu.ops import ROWS, arg, copy_of, run_of_rows, share
from kernels_cpu.simd import f32_bits, f32x16, ld_i32, ld_i64, load, splat, store, vtanh
from kernels_cpu.subroutine import subroutine


@subroutine(inlined=True)
def _run(row, thread, n_threads, compute):  # type: ignore[no-untyped-def]
    """A kernel's body: compute(x, c) of every element.

    Arguments: count, n_cols, x, x_own, out, own, c_bits, mode. Rows lie 32-column blocks after one another, without
    gaps. Out may be x. With mode COLUMNS split by columns, both own being 0; with mode ROWS by rows, or every thread
    for itself.
    """
    n, n_units = ld_i64(arg(row, 0)), (arg(row, 1) + 31) // 32
    x, out = copy_of(thread, arg(row, 2), arg(row, 3), n), copy_of(thread, arg(row, 4), arg(row, 5), n)
    c = splat(f32x16, f32_bits(arg(row, 6)))
    first, end, start, stop = int64(0), n, share(n_units, thread, n_threads), share(n_units, thread + 1, n_threads)
    if arg(row, 7) == ROWS:
        first, end = run_of_rows(thread, n_threads, n, arg(row, 5))
        start, stop = int64(0), n_units
    for i in range(first, end):
        for column in range(128 * (i * n_units + start), 128 * (i * n_units + stop), 64):
            store(out + column, compute(load(f32x16, x + column), c))


@subroutine(f32x16, inlined=True)
def _times(x: Any, c: Any) -> Any:
    return x * c


@subroutine(f32x16, inlined=True)
def _capped(x: Any, c: Any) -> Any:
    return c * vtanh(x / c)


@kernel
def scale(row: int, thread: int, n_threads: int) -> None:
    """x * c: see _run."""
    _run(row, thread, n_threads, _times)


@kernel
def softcap(row: int, thread: int, n_threads: int) -> None:
    """c * tanh(x / c): see _run."""
    _run(row, thread, n_threads, _capped)


@kernel
def select_outputs(row: int, thread: int, n_threads: int) -> None:
    """The rows whose logits are wanted, copied.

    Arguments: count (of output rows), n_cols, count of x, x, x_own, output_rows, out, own. Rows lie 32-column blocks
    after one another, without gaps; out must not be x. Split by output rows, or every thread for itself.
    """
    n, stride = ld_i64(arg(row, 0)), 128 * ((arg(row, 1) + 31) // 32)
    x = copy_of(thread, arg(row, 3), arg(row, 4), ld_i64(arg(row, 2)))
    out = copy_of(thread, arg(row, 6), arg(row, 7), n)
    first, end = run_of_rows(thread, n_threads, n, arg(row, 7))
    for i in range(first, end):
        p, o = x + ld_i32(arg(row, 5) + 4 * i) * stride, out + i * stride
        for column in range(0, stride, 64):
            store(o + column, load(f32x16, p + column))

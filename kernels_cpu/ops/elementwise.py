"""Operations on single elements, and the choice of output rows; they know nothing of heads or positions."""

from __future__ import annotations

from numba import njit

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, share
from kernels_cpu.simd import f32_bits, f32x16, ld_i32, ld_i64, load, splat, store, vtanh


@njit(inline="always")
def _units(n_cols: int) -> int:
    """Units of 32 columns in a row, its padding included."""
    return (n_cols + 31) // 32


@kernel
def add(row: int, thread: int, n_threads: int) -> None:
    """x + y, split by (row, 32 columns).

    Arguments: count, x, x_stride, y, y_stride, out, out_stride, n_cols. Out may be x or y.
    """
    n, n_units = ld_i64(arg(row, 0)), _units(arg(row, 7))
    x, x_stride, y, y_stride, out, out_stride = (
        arg(row, 1),
        arg(row, 2),
        arg(row, 3),
        arg(row, 4),
        arg(row, 5),
        arg(row, 6),
    )
    for item in range(share(n * n_units, thread, n_threads), share(n * n_units, thread + 1, n_threads)):
        i = item // n_units
        column = 128 * (item - i * n_units)
        p, q, o = x + i * x_stride + column, y + i * y_stride + column, out + i * out_stride + column
        store(o, load(f32x16, p) + load(f32x16, q))
        store(o + 64, load(f32x16, p + 64) + load(f32x16, q + 64))


@kernel
def scale(row: int, thread: int, n_threads: int) -> None:
    """x * c, split by (row, 32 columns).

    Arguments: count, x, x_stride, out, out_stride, n_cols, c_bits. Out may be x.
    """
    n, n_units = ld_i64(arg(row, 0)), _units(arg(row, 5))
    x, x_stride, out, out_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4)
    c = splat(f32x16, f32_bits(arg(row, 6)))
    for item in range(share(n * n_units, thread, n_threads), share(n * n_units, thread + 1, n_threads)):
        i = item // n_units
        column = 128 * (item - i * n_units)
        p, o = x + i * x_stride + column, out + i * out_stride + column
        store(o, load(f32x16, p) * c)
        store(o + 64, load(f32x16, p + 64) * c)


@kernel
def softcap(row: int, thread: int, n_threads: int) -> None:
    """c * tanh(x / c), split by (row, 32 columns).

    Arguments: count, x, x_stride, out, out_stride, n_cols, c_bits. Out may be x.
    """
    n, n_units = ld_i64(arg(row, 0)), _units(arg(row, 5))
    x, x_stride, out, out_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4)
    c = splat(f32x16, f32_bits(arg(row, 6)))
    for item in range(share(n * n_units, thread, n_threads), share(n * n_units, thread + 1, n_threads)):
        i = item // n_units
        column = 128 * (item - i * n_units)
        for half in range(column, column + 128, 64):
            store(out + i * out_stride + half, c * vtanh(load(f32x16, x + i * x_stride + half) / c))


@kernel
def select_outputs(row: int, thread: int, n_threads: int) -> None:
    """The rows whose logits are wanted, copied; split by (output row, 32 columns).

    Arguments: count (of output rows), x, x_stride, output_rows, out, out_stride, n_cols. Out must not be x.
    """
    n, n_units = ld_i64(arg(row, 0)), _units(arg(row, 6))
    x, x_stride, output_rows, out, out_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4), arg(row, 5)
    for item in range(share(n * n_units, thread, n_threads), share(n * n_units, thread + 1, n_threads)):
        i = item // n_units
        column = 128 * (item - i * n_units)
        p, o = x + ld_i32(output_rows + 4 * i) * x_stride + column, out + i * out_stride + column
        store(o, load(f32x16, p))
        store(o + 64, load(f32x16, p + 64))

"""Gated activations of a feed-forward layer; they do not know the layers around them."""

from __future__ import annotations

from numba import njit

from kernels_cpu.compile import kernel
from kernels_cpu.ops import COLUMNS, arg, share
from kernels_cpu.simd import (
    f32x16,
    f64x16,
    fma,
    fpext,
    fptrunc,
    ld_i64,
    load,
    select_less,
    splat,
    store,
    vabs,
    vexp,
    zero,
)


@njit(inline="always")
def _split(row: int, n: int, thread: int, n_threads: int) -> tuple[int, int, int, int]:
    """First and end row, first and end byte of a row, of a thread's share in the mode of the tape's row."""
    n_units, mode = (arg(row, 7) + 31) // 32, arg(row, 8)
    if mode == COLUMNS:
        return 0, n, 128 * share(n_units, thread, n_threads), 128 * share(n_units, thread + 1, n_threads)
    return share(n, thread, n_threads), share(n, thread + 1, n_threads), 0, 128 * n_units


@kernel
def swiglu(row: int, thread: int, n_threads: int) -> None:
    """gate / (1 + exp(-gate)) * up, split by rows or columns.

    Arguments: count, gate, gate_stride, up, up_stride, out, out_stride, n_cols, mode. Out may be gate or up.
    The exponential is of -|gate| only, so that nothing overflows.
    """
    first, end, start, stop = _split(row, ld_i64(arg(row, 0)), thread, n_threads)
    gate, gate_stride, up, up_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4)
    out, out_stride = arg(row, 5), arg(row, 6)
    one, none = splat(f32x16, 1.0), zero(f32x16)
    for i in range(first, end):
        for column in range(start, stop, 64):
            x = load(f32x16, gate + i * gate_stride + column)
            e = vexp(none - vabs(x))
            y = x * (select_less(x, none, e, one) / (one + e))
            store(out + i * out_stride + column, y * load(f32x16, up + i * up_stride + column))


@kernel
def geglu(row: int, thread: int, n_threads: int) -> None:
    """0.5 gate (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) * up, split by rows or columns.

    Arguments: count, gate, gate_stride, up, up_stride, out, out_stride, n_cols, mode. Out may be gate or up.
    0.5 (1 + tanh(w / 2)) = 1 / (1 + exp(-w)). w is computed in float64 and kept as a float32 and its rest, since the
    exponential multiplies the relative error of w by w.
    """
    first, end, start, stop = _split(row, ld_i64(arg(row, 0)), thread, n_threads)
    gate, gate_stride, up, up_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4)
    out, out_stride = arg(row, 5), arg(row, 6)
    one, none, limit = splat(f32x16, 1.0), zero(f32x16), splat(f32x16, 90.0)
    c1, c3 = splat(f64x16, 1.5957691216057308), splat(f64x16, 0.07135481627260025)  # 2 sqrt(2 / pi), 0.044715 of it
    for i in range(first, end):
        for column in range(start, stop, 64):
            x = load(f32x16, gate + i * gate_stride + column)
            g = fpext(f64x16, vabs(x))
            w = g * (c1 + c3 * (g * g))
            high = fptrunc(f32x16, w)
            rest = fptrunc(f32x16, w - fpext(f64x16, high))
            e = vexp(none - high)
            e = select_less(limit, high, none, fma(none - e, rest, e))  # beyond the limit the rest may be inf - inf
            y = x * (select_less(x, none, e, one) / (one + e))
            store(out + i * out_stride + column, y * load(f32x16, up + i * up_stride + column))

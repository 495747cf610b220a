"""Gated activations of a feed-forward layer; they do not know the layers around them."""

from __future__ import annotations

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, share
from kernels_cpu.ops.quantize import write_block
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
    vabs,
    vexp,
    zero,
)
from kernels_cpu.subroutine import subroutine


@subroutine(f32x16, inlined=True)
def _swish(x: object) -> object:
    """x / (1 + exp(-x)). The exponential is of -|x| only, so that nothing overflows."""
    one, none = splat(f32x16, 1.0), zero(f32x16)
    e = vexp(none - vabs(x))
    return x * (select_less(x, none, e, one) / (one + e))


@subroutine(f32x16, inlined=True)
def _gelu(x: object) -> object:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

    0.5 (1 + tanh(w / 2)) = 1 / (1 + exp(-w)). w is computed in float64 and kept as a float32 and its rest, since the
    exponential multiplies the relative error of w by w.
    """
    one, none, limit = splat(f32x16, 1.0), zero(f32x16), splat(f32x16, 90.0)
    c1, c3 = splat(f64x16, 1.5957691216057308), splat(f64x16, 0.07135481627260025)  # 2 sqrt(2 / pi), 0.044715 of it
    g = fpext(f64x16, vabs(x))
    w = g * (c1 + c3 * (g * g))
    high = fptrunc(f32x16, w)
    rest = fptrunc(f32x16, w - fpext(f64x16, high))
    e = vexp(none - high)
    e = select_less(limit, high, none, fma(none - e, rest, e))  # beyond the limit the rest may be inf - inf
    return x * (select_less(x, none, e, one) / (one + e))


@subroutine(inlined=True)
def _run(row, thread, n_threads, activate):  # type: ignore[no-untyped-def]
    """A kernel's body: activate(gate) * up, split by columns.

    Arguments: count, n_cols, gate, up, floats, quantised, quantised_stride, bits. Rows of floats lie 32-column blocks
    after one another, without gaps; `floats` is 0 or may be gate or up, bits are 0, 8 or 16.
    """
    n, n_blocks, bits = ld_i64(arg(row, 0)), (arg(row, 1) + 31) // 32, arg(row, 7)
    for i in range(n):
        gate, up = arg(row, 2) + 128 * n_blocks * i, arg(row, 3) + 128 * n_blocks * i
        floats = arg(row, 4) + 128 * n_blocks * i if arg(row, 4) != 0 else 0
        quantised = arg(row, 5) + arg(row, 6) * i
        for k in range(share(n_blocks, thread, n_threads), share(n_blocks, thread + 1, n_threads)):
            a = activate(load(f32x16, gate + 128 * k)) * load(f32x16, up + 128 * k)
            b = activate(load(f32x16, gate + 128 * k + 64)) * load(f32x16, up + 128 * k + 64)
            write_block(floats, quantised, bits, k, a, b)


@kernel
def swiglu(row: int, thread: int, n_threads: int) -> None:
    """gate / (1 + exp(-gate)) * up: see _run."""
    _run(row, thread, n_threads, _swish)


@kernel
def geglu(row: int, thread: int, n_threads: int) -> None:
    """0.5 gate (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) * up: see _run."""
    _run(row, thread, n_threads, _gelu)

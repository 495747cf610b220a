"""The compiled operations of a forward pass, one file a group; none knows which model or step it serves.

Every kernel has the signature (row, thread, n_threads): `row` is the address of its row of a tape, whose words
from the third on are its arguments, in the order that its docstring gives. Conventions of the arguments:

- a value is the address of float32 rows that lie `stride` bytes apart, a multiple of 128 (32 columns). Columns
  beyond the last hold 0 and are left at 0; most kernels simply compute on them;
- `count` is the address of an int64, the number of rows of this step;
- positions, slots, output rows are int32 [rows]; a float travels as the bits of a float32.

A kernel splits its work by *rows* (a contiguous run of rows for each thread), by *columns* (a run of units of
32 columns, all rows, as linear layers split their results), or by items of a list that it names. Kernels of
equal split may follow one another without a barrier. What is computed for an element, and in which order,
never depends on the split or on the other rows.

Where whole rows are worked on and a step has few of them (OWN_ROWS), computing them is cheaper than waiting for
another thread to do it: every thread then computes all rows, into a copy of its own. `own`, among the arguments,
is the distance between the threads' copies of a value, 0 for one that all threads share.
"""

from __future__ import annotations

import struct
from types import FunctionType
from typing import Any

from numba import types
from numba.extending import intrinsic

from kernels_cpu.compile import Kernel
from kernels_cpu.simd import I64, const, emit_load

FIRST_ARGUMENT = 2
"""Words of a tape's row in front of the arguments."""

OWN_ROWS = 4
"""Up to so many rows in a step, each thread keeps copies of its own of the values that are made by rows."""

ROWS, COLUMNS = 0, 1
"""Values of a `mode` argument: how a kernel that can do both splits its work."""


@intrinsic
def arg(tyctx, row, i):  # type: ignore[no-untyped-def]
    """Argument `i` of the tape's row at `row`, an int64."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return emit_load(b, I64, b.add(a[0], b.mul(b.add(a[1], const(I64, FIRST_ARGUMENT)), const(I64, 8))))

    return types.int64(types.int64, types.int64), gen


@intrinsic
def share(tyctx, n, thread, n_threads):  # type: ignore[no-untyped-def]
    """Where the share of `thread` of n items begins: n * thread // n_threads, all non-negative."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return b.udiv(b.mul(a[0], a[1]), a[2])

    return types.int64(types.int64, types.int64, types.int64), gen


@intrinsic
def round_up(tyctx, n, unit):  # type: ignore[no-untyped-def]
    """The multiple of `unit`, a power of 2, from n on."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return b.and_(b.add(a[0], b.sub(a[1], const(I64, 1))), b.neg(a[1]))

    return types.int64(types.int64, types.int64), gen


@intrinsic
def copy_of(tyctx, thread, x, own, n):  # type: ignore[no-untyped-def]
    """Where the rows of the value at x begin for a thread, in a step of n rows."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        thread, x, own, n = a
        return b.select(b.icmp_signed("<=", n, const(I64, OWN_ROWS)), b.add(x, b.mul(own, thread)), x)

    return types.int64(*[types.int64] * 4), gen


@intrinsic
def run_of_rows(tyctx, thread, n_threads, n, own):  # type: ignore[no-untyped-def]
    """First and end of the rows that a thread makes: all of them where it keeps a copy, else a share."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        thread, n_threads, n, own = a
        has_copy = b.and_(b.icmp_signed("<=", n, const(I64, OWN_ROWS)), b.icmp_unsigned("!=", own, const(I64, 0)))
        first, end = (b.udiv(b.mul(n, t), n_threads) for t in (thread, b.add(thread, const(I64, 1))))
        bounds = b.select(has_copy, const(I64, 0), first), b.select(has_copy, n, end)
        return ctx.make_tuple(b, sig.return_type, bounds)

    return types.UniTuple(types.int64, 2)(*[types.int64] * 4), gen


def float_bits(x: float) -> int:
    """A float32 as a tape row carries it."""
    return int(struct.unpack("<i", struct.pack("<f", x))[0])


def specialised(template: Any, module: str, name: str, cost: int = 1, **used: Any) -> Kernel:
    """A kernel called `name` in `module`: a copy of the function `template` with the globals `used` of its own.

    Numba reads globals as constants, and its disk cache wants functions of a module and not closures.
    """
    copy = FunctionType(template.__code__, template.__globals__ | used, name)
    copy.__module__, copy.__doc__ = module, template.__doc__
    copy.__qualname__ = f"{module.rpartition('.')[2]}_{name}"
    return Kernel(copy, cost)

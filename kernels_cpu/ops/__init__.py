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
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from kernels_cpu.simd import I64, const, emit_load

FIRST_ARGUMENT = 2
"""Words of a tape's row in front of the arguments."""

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

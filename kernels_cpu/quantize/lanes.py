"""What quantising asks of vectors beyond kernels_cpu.simd: rows into lanes and back, and bytes; it knows no type.

A lane is a row: 16 rows are quantised side by side, so that every step of a search is one vector operation, and sums
are taken in the order of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels_cpu.simd import (
    F32,
    I8,
    I16,
    I32,
    V_F32X16,
    V_I32X16,
    Builder,
    call_llvm,
    const,
    emit_float_to_half_bits,
    emit_half_to_float,
    emit_load,
    emit_load_f16,
    emit_pick,
    emit_rint,
    emit_shuffle,
    emit_splat,
    emit_store,
    f32x16,
    i8x16,
    i32x16,
)

Vector: TypeAlias = Any
"""A vector, in the annotations of what Numba compiles."""

LANES = 16
ROW = 64
"""Bytes of 16 floats, one a lane."""

F32_ROWS, F16_ROWS, BF16_ROWS = range(3)
"""Kinds of rows to quantise."""

_V_I8, _V_I16 = ir.VectorType(I8, LANES), ir.VectorType(I16, LANES)


def _load_bfloat16(b: Builder, addr: ir.Value) -> ir.Value:
    wide = b.zext(emit_load(b, _V_I16, addr), V_I32X16)
    return b.bitcast(b.shl(wide, const(V_I32X16, 16)), V_F32X16)


def _exchanged(b: Builder, rows: list[ir.Value], distance: int) -> list[ir.Value]:
    """Rows whose lanes and numbers have one bit exchanged, that of `distance`."""
    new = list(rows)
    for i in (i for i in range(LANES) if not i & distance):
        low, high = rows[i], rows[i + distance]
        new[i] = emit_shuffle(b, low, [j if not j & distance else LANES + j - distance for j in range(LANES)], high)
        moved = [j + distance if not j & distance else LANES + j for j in range(LANES)]
        new[i + distance] = emit_shuffle(b, low, moved, high)
    return new


def _emit_transpose(b: Builder, rows: list[ir.Value]) -> list[ir.Value]:
    for distance in (8, 4, 2, 1):
        rows = _exchanged(b, rows, distance)
    return rows


def _reader(load: Callable[[Builder, ir.Value], ir.Value]) -> Any:
    @intrinsic
    def read(tyctx, rows, stride, to):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            addr, stride, to = a
            loaded = []
            for _ in range(LANES):
                loaded.append(load(b, addr))
                addr = b.add(addr, stride)
            largest = const(V_I32X16, 0)
            for i, column in enumerate(_emit_transpose(b, loaded)):
                emit_store(b, column, to, ROW * i)
                magnitude = b.and_(b.bitcast(column, V_I32X16), const(V_I32X16, 0x7FFFFFFF))
                largest = emit_pick(b, ">", magnitude, largest)
            return largest

        return i32x16(types.int64, types.int64, types.int64), gen

    read.__doc__ = """16 columns of 16 rows, `stride` bytes apart, to float32 [16 columns][16 rows] at `to`.

    Gives the bits of each row's largest magnitude."""
    return read


read_f32, read_f16 = _reader(lambda b, addr: emit_load(b, V_F32X16, addr)), _reader(emit_load_f16)
read_bf16 = _reader(_load_bfloat16)


@intrinsic
def write_bytes(tyctx, columns, to, stride):  # type: ignore[no-untyped-def]
    """Bytes [16 columns][16 rows] at `columns` to 16 rows, `stride` bytes apart."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        columns, to, stride = a
        v = [emit_load(b, _V_I8, columns, LANES * i) for i in range(LANES)]
        low, high = ([i + h for p in range(8) for i in (p, LANES + p)] for h in (0, 8))
        for _ in range(4):  # each time one bit of the columns' number becomes one of the lane's
            v = [emit_shuffle(b, v[i // 2], high if i % 2 else low, v[i // 2 + 8]) for i in range(LANES)]
        for row in v:
            emit_store(b, row, to)
            to = b.add(to, stride)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), gen


@intrinsic
def each(tyctx, x):  # type: ignore[no-untyped-def]
    """A number, rounded to float32, in every lane."""
    x = types.unliteral(x)

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return emit_splat(b, V_F32X16, ctx.cast(b, a[0], x, types.float32))

    return f32x16(x), gen


@intrinsic
def root(tyctx, x):  # type: ignore[no-untyped-def]
    """The square root of each lane, rounded once."""
    return f32x16(x), lambda ctx, b, sig, a: call_llvm(b, "llvm.sqrt.v16f32", V_F32X16, a[0])


@intrinsic
def nearest(tyctx, x, low, high):  # type: ignore[no-untyped-def]
    """The nearest whole number within [low, high], of ties the even one; NaN gives `low`."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return emit_rint(b, emit_pick(b, "<", emit_pick(b, ">", a[0], a[1]), a[2]))

    return f32x16(x, x, x), gen


@intrinsic
def as_bytes(tyctx, x):  # type: ignore[no-untyped-def]
    """Whole numbers of -128 ... 255, a byte each; fractions are cut off."""
    return i8x16(x), lambda ctx, b, sig, a: b.trunc(b.fptosi(a[0], V_I32X16), _V_I8)


@intrinsic
def half_bits(tyctx, x):  # type: ignore[no-untyped-def]
    """The bits of the nearest half, int32 lanes."""
    return i32x16(x), lambda ctx, b, sig, a: b.zext(emit_float_to_half_bits(b, a[0]), V_I32X16)


@intrinsic
def through_half(tyctx, x):  # type: ignore[no-untyped-def]
    """Each lane rounded to what a half can say."""
    return f32x16(x), lambda ctx, b, sig, a: emit_half_to_float(b, emit_float_to_half_bits(b, a[0]))


@intrinsic
def bfloat16_bits(tyctx, x):  # type: ignore[no-untyped-def]
    """The bits of the nearest bfloat16 of what is not NaN, of ties the even one, int32 lanes."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        bits = b.bitcast(a[0], V_I32X16)
        upper = b.lshr(bits, const(V_I32X16, 16))
        odd = b.and_(upper, const(V_I32X16, 1))
        return b.lshr(b.add(bits, b.add(odd, const(V_I32X16, 0x7FFF))), const(V_I32X16, 16))

    return i32x16(x), gen


@intrinsic
def byte(tyctx, word, i):  # type: ignore[no-untyped-def]
    """Byte `i` of each int32 lane, the lowest first."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        shift = emit_splat(b, V_I32X16, b.trunc(b.shl(a[1], const(a[1].type, 3)), I32))
        return b.trunc(b.lshr(a[0], shift), _V_I8)

    return i8x16(word, types.int64), gen


@intrinsic
def low_bits(tyctx, x, n):  # type: ignore[no-untyped-def]
    """The lowest n bits of each byte."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        mask = b.sub(b.shl(const(a[1].type, 1), a[1]), const(a[1].type, 1))
        return b.and_(a[0], emit_splat(b, _V_I8, b.trunc(mask, I8)))

    return i8x16(x, types.int64), gen


def _shift(name: str) -> Any:
    @intrinsic
    def shift(tyctx, x, n):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            return getattr(b, name)(a[0], emit_splat(b, _V_I8, b.trunc(a[1], I8)))

        return i8x16(x, types.int64), gen

    shift.__doc__ = "Each byte shifted by n bits, without sign."
    return shift


up, down = _shift("shl"), _shift("lshr")


@intrinsic
def broadcast(tyctx, addr):  # type: ignore[no-untyped-def]
    """The float32 at `addr` in every lane."""
    return f32x16(types.int64), lambda ctx, b, sig, a: emit_splat(b, V_F32X16, emit_load(b, F32, a[0]))

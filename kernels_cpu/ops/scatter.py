"""Vectors written to places that lie apart; it does not know what they hold."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels_cpu.simd import I32, I64, Builder, const, emit_shuffle, emit_store, f32x16, i8x16, i16x16


def _emit_scatter(b: Builder, v: ir.Value, addr: ir.Value, step: ir.Value) -> None:
    """The lanes of v to addr, addr + step, ..."""
    for k in range(v.type.count):
        emit_store(b, b.extract_element(v, const(I32, k)), addr)
        addr = b.add(addr, step)


@intrinsic
def scatter_f32(tyctx, addr, step, v):  # type: ignore[no-untyped-def]
    """The floats of f32x16 to addr, addr + step, ..."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        _emit_scatter(b, a[2], a[0], a[1])
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, f32x16), gen


@intrinsic
def scatter_fours(tyctx, addr, step, v):  # type: ignore[no-untyped-def]
    """Each 4 lanes of i16x16 to addr, addr + step, ..."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        _emit_scatter(b, b.bitcast(a[2], ir.VectorType(I64, 4)), a[0], a[1])
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, i16x16), gen


@intrinsic
def scatter_words(tyctx, addr, step, v):  # type: ignore[no-untyped-def]
    """Each 4 bytes of i8x16 to addr, addr + step, ..."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        _emit_scatter(b, b.bitcast(a[2], ir.VectorType(I32, 4)), a[0], a[1])
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, i8x16), gen


@intrinsic
def scatter_nibbles(tyctx, addr, step, v):  # type: ignore[no-untyped-def]
    """Each 8 codes in 0..15 of i8x16 as 4 bytes to addr and addr + step: the first 4 in the low bits."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        words = b.bitcast(a[2], ir.VectorType(I32, 4))
        low, high = emit_shuffle(b, words, (0, 2)), emit_shuffle(b, words, (1, 3))
        _emit_scatter(b, b.or_(low, b.shl(high, const(low.type, 4))), a[0], a[1])
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, i8x16), gen

"""What the kernels that write to the KV cache make of 32 floats; they know nothing of pages."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels_cpu.simd import (
    F32,
    I8,
    I32,
    V_F32X16,
    V_I32X16,
    Builder,
    const,
    emit_abs,
    emit_float_to_half_bits,
    emit_half_to_float,
    emit_load,
    emit_pick,
    emit_reduce,
    emit_rint,
    emit_splat,
    i8x16,
    i32x16,
)


def _emit_as_half(b: Builder, x: ir.Value) -> ir.Value:
    """x rounded to a half and back, as float32."""
    bits = emit_float_to_half_bits(b, emit_splat(b, ir.VectorType(F32, 4), x))
    return b.extract_element(emit_half_to_float(b, bits), const(I32, 0))


def _emit_largest(b: Builder, x: list[ir.Value]) -> ir.Value:
    """max |x|, found among the bits, where NaN is largest of all."""
    magnitudes = [b.bitcast(emit_abs(b, v), V_I32X16) for v in x]
    both = emit_pick(b, ">", magnitudes[0], magnitudes[1])
    return b.bitcast(emit_reduce(b, both, lambda p, q: emit_pick(b, ">", p, q)), F32)


def _emit_scale(b: Builder, x: list[ir.Value], bits: int) -> ir.Value:
    """The scale of a block before it is rounded: see kv_rounding. A NaN makes it NaN."""
    largest = _emit_largest(b, x)
    if bits == 8:
        return b.fdiv(largest, const(F32, 127.0))
    low = emit_pick(b, "<", x[0], x[1])
    low = emit_reduce(b, low, lambda p, q: emit_pick(b, "<", p, q))
    has_negative = b.fcmp_ordered("==", low, b.fneg(largest))
    return b.fdiv(b.select(has_negative, low, largest), const(F32, -8.0))


def _make_quantise(bits: int) -> Any:
    """Intrinsic: 32 floats at x as (scale, integers of the first 16, of the last 16): see kernels_cpu.kv_rounding.

    Integers of a block whose scale is NaN or infinite mean nothing.
    """
    smallest, largest = (-127.0, 127.0) if bits == 8 else (-8.0, 7.0)

    @intrinsic
    def quantise(tyctx, x):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            halves = [emit_load(b, V_F32X16, a[0], offset) for offset in (0, 64)]
            d = _emit_as_half(b, _emit_scale(b, halves, bits))
            is_zero = b.fcmp_ordered("==", d, const(F32, 0.0))
            inverse = b.select(is_zero, const(F32, 0.0), b.fdiv(const(F32, 1.0), d))
            codes = []
            for v in halves:
                y = b.fmul(v, emit_splat(b, V_F32X16, inverse))
                y = emit_pick(b, "<", emit_pick(b, ">", y, const(V_F32X16, smallest)), const(V_F32X16, largest))
                codes.append(b.fptosi(emit_rint(b, y), V_I32X16))
            return ctx.make_tuple(b, sig.return_type, [d, *codes])

        return types.Tuple([types.float32, i32x16, i32x16])(types.int64), gen

    return quantise


quantise_8, quantise_4 = _make_quantise(8), _make_quantise(4)


@intrinsic
def biased(tyctx, x, bias):  # type: ignore[no-untyped-def]
    """x + bias of each i32 lane, as a byte: i8x16."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        total = b.add(a[0], emit_splat(b, V_I32X16, b.trunc(a[1], I32)))
        return b.trunc(total, ir.VectorType(I8, 16))

    return i8x16(i32x16, types.int64), gen


@intrinsic
def nibbles(tyctx, low, high):  # type: ignore[no-untyped-def]
    """The low 4 bits of each byte of `low`, and above them those of `high`; i8x16 each."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return b.or_(b.and_(a[0], const(a[0].type, 15)), b.shl(a[1], const(a[1].type, 4)))

    return low(low, low), gen

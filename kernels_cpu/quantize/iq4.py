"""IQ4_NL and IQ4_XS, compiled: twins/iq4.py says what is computed.

IQ4_NL   d f16 | 16 bytes: codes 0 ... 15 in the low, 16 ... 31 in the high nibbles
IQ4_XS   d f16 | 2 bytes: the upper two bits of eight 6-bit scales | 4 bytes: their nibbles | 8 sub-blocks of 16 bytes
"""

from __future__ import annotations

from itertools import pairwise

from llvmlite import ir
from numba.extending import intrinsic

from kernels_cpu.quantize.lanes import ROW, Vector, down, each, low_bits, nearest, up
from kernels_cpu.quantize.legacy import put_nibbles
from kernels_cpu.quantize.quantizer import quantizer
from kernels_cpu.quantize.scratch import (
    CODES,
    PRODUCT,
    SCALE_CODES,
    SCALES,
    WEIGHT,
    X,
    put,
    put_half,
    scale_code,
)
from kernels_cpu.quantize.search import SMALLEST, first_extreme, reciprocal_or_0, sum_of_squares
from kernels_cpu.quantize.weights import weigh_by_importance, weigh_by_square
from kernels_cpu.quants.iq4_nl import VALUES
from kernels_cpu.simd import (
    I8,
    I16,
    V_F32X16,
    V_I32X16,
    Builder,
    const,
    emit_join,
    emit_lookup,
    emit_pick,
    emit_slice,
    f32x16,
    i8x16,
    load,
    select_less,
    store,
    vabs,
)
from kernels_cpu.subroutine import subroutine

REACH = 7

_V_I8, _V_I16 = ir.VectorType(I8, 16), ir.VectorType(I16, 16)


def _emit_place(b: Builder, x: ir.Value) -> ir.Value:
    """Where in VALUES the nearest is, of two the larger; i16 lanes.

    Middles between neighbours are whole or half numbers, so that floor(2x) tells on which side of them x lies.
    """
    twice = b.fmul(x, const(V_F32X16, 2.0))
    bounded = emit_pick(b, "<", emit_pick(b, ">", twice, const(V_F32X16, -256.0)), const(V_F32X16, 256.0))
    cut = b.fptosi(bounded, V_I32X16)
    is_above = b.fcmp_ordered(">", b.sitofp(cut, V_F32X16), bounded)
    floor = b.trunc(b.add(cut, b.sext(is_above, V_I32X16)), _V_I16)
    place = const(_V_I16, 0)
    for value, after in pairwise(VALUES):
        is_above = b.icmp_signed(">", floor, const(_V_I16, value + after - 1))
        place = b.sub(place, b.sext(is_above, _V_I16))
    return place


def _emit_values(b: Builder, place: ir.Value) -> ir.Value:
    """The values at places, f32 lanes."""
    index = b.trunc(place, _V_I8)
    shifted = emit_lookup(b, emit_join(b, [index] * 4), [v + 127 for v in VALUES])
    found = b.zext(emit_slice(b, shifted, 0, 4), V_I32X16)
    return b.sitofp(b.sub(found, const(V_I32X16, 127)), V_F32X16)


@intrinsic
def place(tyctx, x):  # type: ignore[no-untyped-def]
    """Where in VALUES the nearest is, of two the larger; bytes."""
    return i8x16(x), lambda ctx, b, sig, a: b.trunc(_emit_place(b, a[0]), _V_I8)


@intrinsic
def nearest_value(tyctx, x):  # type: ignore[no-untyped-def]
    """The nearest of VALUES, of two the larger."""
    return f32x16(x), lambda ctx, b, sig, a: _emit_values(b, _emit_place(b, a[0]))


@subroutine()
def _fit_listed(s: int, x: int, scale_to: int) -> None:
    """The scale of 32 columns, for WEIGHT."""
    extreme = first_extreme(x, 32)
    is_zero = vabs(extreme)
    extreme = select_less(is_zero, each(SMALLEST), each(1.0), extreme)
    for at in range(0, 32 * ROW, ROW):
        store(s + PRODUCT + at, load(f32x16, s + WEIGHT + at) * load(f32x16, x + at))
    scale, gain = each(0.0), each(0.0)
    for i in range(-REACH - 1, REACH + 1):
        factor = (each(i) + each(-127.0)) / extreme
        if i < -REACH:
            factor = each(1.0) / ((each(0.0) - extreme) / each(-127.0))
        product, square = each(0.0), each(0.0)
        for at in range(0, 32 * ROW, ROW):
            v, w = load(f32x16, x + at), load(f32x16, s + WEIGHT + at)
            q = nearest_value(factor * v)
            weighted = w * q
            product = product + weighted * v
            square = square + weighted * q
        needed = each(-1.0) if i < -REACH else gain * square
        beaten = select_less(each(0.0), square, product * product, needed)
        ratio = product / square
        scale = select_less(needed, beaten, ratio, scale)
        gain = select_less(needed, beaten, ratio * product, gain)
    store(scale_to, select_less(is_zero, each(SMALLEST), each(0.0), scale))


@subroutine()
def _places(s: int, x: int, factor: Vector) -> None:
    """CODES of 32 columns."""
    for i in range(32):
        store(s + CODES + 16 * i, place(load(f32x16, x + ROW * i) * factor))


@subroutine()
def _put_iq4_nl(s: int) -> None:
    _fit_listed(s, s + X, s + SCALES)
    scale = load(f32x16, s + SCALES)
    _places(s, s + X, reciprocal_or_0(scale))
    put_half(s, 0, scale)
    put_nibbles(s, 2)


@subroutine()
def _iq4_nl(s: int, importance: int) -> None:
    weigh_by_square(s, s + X, 32)
    _put_iq4_nl(s)


@subroutine()
def _iq4_nl_weighted(s: int, importance: int) -> None:
    mean_square = sum_of_squares(s + X, 32) * each(2 / 32)
    weigh_by_importance(s, s + X, 32, importance, mean_square)
    _put_iq4_nl(s)


@subroutine()
def _put_iq4_xs(s: int) -> None:
    d = first_extreme(s + SCALES, 8) / each(-32.0)
    put_half(s, 0, d)
    factor = reciprocal_or_0(d)
    for sub in range(8):
        scale = nearest(factor * load(f32x16, s + SCALES + ROW * sub), each(-32.0), each(31.0))
        store(s + SCALE_CODES + ROW * sub, scale + each(32.0))
        _places(s, s + X + 32 * ROW * sub, reciprocal_or_0(d * scale))
        put_nibbles(s, 8 + 16 * sub)
    for i in range(2):
        low = down(scale_code(s, 4 * i), 4) | up(down(scale_code(s, 4 * i + 1), 4), 2)
        high = up(down(scale_code(s, 4 * i + 2), 4), 4) | up(down(scale_code(s, 4 * i + 3), 4), 6)
        put(s, 2 + i, low | high)
    for i in range(4):
        put(s, 4 + i, low_bits(scale_code(s, 2 * i), 4) | up(scale_code(s, 2 * i + 1), 4))


@subroutine()
def _iq4_xs(s: int, importance: int) -> None:
    for sub in range(8):
        weigh_by_square(s, s + X + 32 * ROW * sub, 32)
        _fit_listed(s, s + X + 32 * ROW * sub, s + SCALES + ROW * sub)
    _put_iq4_xs(s)


@subroutine()
def _iq4_xs_weighted(s: int, importance: int) -> None:
    mean_square = sum_of_squares(s + X, 256) * each(2 / 256)
    for sub in range(8):
        weigh_by_importance(s, s + X + 32 * ROW * sub, 32, importance + 128 * sub, mean_square)
        _fit_listed(s, s + X + 32 * ROW * sub, s + SCALES + ROW * sub)
    _put_iq4_xs(s)


IQ4_NL = quantizer(__name__, "IQ4_NL", "IQ4_NL", _iq4_nl)
IQ4_NL_WEIGHTED = quantizer(__name__, "IQ4_NL_WEIGHTED", "IQ4_NL", _iq4_nl_weighted)
IQ4_XS = quantizer(__name__, "IQ4_XS", "IQ4_XS", _iq4_xs)
IQ4_XS_WEIGHTED = quantizer(__name__, "IQ4_XS_WEIGHTED", "IQ4_XS", _iq4_xs_weighted)

"""MXFP4, TQ1_0, TQ2_0, F16 and BF16, compiled: twins/small.py and twins/floats.py say what is computed.

    MXFP4   exponent of two, biased by 127 | 16 bytes: codes 0 ... 15 in the low, 16 ... 31 in the high nibbles
    TQ1_0   32 bytes of five columns 32 apart | 16 bytes of five, 16 apart | 4 bytes of four, 4 apart | d f16
    TQ2_0   64 bytes: of each 128 columns, four quarters side by side, 2 bits each | d f16

F16 and BF16, which have no blocks, are made 16 columns at a time.
"""

from __future__ import annotations

from numba.extending import intrinsic

from kernels_cpu.quantize.k_affine import put_pairs
from kernels_cpu.quantize.lanes import ROW, Vector, as_bytes, bfloat16_bits, byte, each
from kernels_cpu.quantize.legacy import put_nibbles, ready_to_cut
from kernels_cpu.quantize.quantizer import quantizer
from kernels_cpu.quantize.scratch import CODES, SEARCHED, X, put, put_half
from kernels_cpu.quantize.search import first_extreme, reciprocal_or_0
from kernels_cpu.simd import V_F32X16, V_I32X16, const, f32x16, load, select_less, store, vabs, vmax
from kernels_cpu.subroutine import subroutine

MIDDLES = (0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0)


@intrinsic
def biased_exponent(tyctx, x):  # type: ignore[no-untyped-def]
    """Of x >= 0: floor(log2 x) + 127, and 0 below the normal numbers."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return b.sitofp(b.lshr(b.bitcast(a[0], V_I32X16), const(V_I32X16, 23)), V_F32X16)

    return f32x16(x), gen


@intrinsic
def power_of_two(tyctx, x):  # type: ignore[no-untyped-def]
    """2^(x - 125) for whole numbers x of 0 ... 252."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        exponent = b.add(b.fptosi(a[0], V_I32X16), const(V_I32X16, 2))
        return b.bitcast(b.shl(exponent, const(V_I32X16, 23)), V_F32X16)

    return f32x16(x), gen


@intrinsic
def cut(tyctx, x):  # type: ignore[no-untyped-def]
    """x without its fraction, |x| < 2^31."""
    return f32x16(x), lambda ctx, b, sig, a: b.sitofp(b.fptosi(a[0], V_I32X16), V_F32X16)


@subroutine()
def _mxfp4(s: int, importance: int) -> None:
    exponent = vmax(biased_exponent(vabs(first_extreme(s + X, 32))) - each(2.0), each(0.0))
    unit = power_of_two(exponent) * each(0.125)
    nothing, one = each(0.0), each(1.0)
    for i in range(32):
        v = load(f32x16, s + X + ROW * i)
        found = nothing
        for middle in MIDDLES:
            found = found + select_less(each(middle) * unit, vabs(v), one, nothing)
        sign = select_less(v, nothing, select_less(nothing, found, each(8.0), nothing), nothing)
        store(s + CODES + 16 * i, as_bytes(found + sign))
    put(s, 0, as_bytes(exponent))
    put_nibbles(s, 1)


@subroutine(f32x16)
def _trits(s: int) -> Vector:
    """Codes 0, 1, 2 of 256 columns as bytes, and as floats in SEARCHED; gives the scale."""
    d = vabs(first_extreme(s + X, 256))
    factor = reciprocal_or_0(d)
    for i in range(256):
        found = cut(ready_to_cut(load(f32x16, s + X + ROW * i) * factor, 1)) + each(1.0)
        store(s + SEARCHED + ROW * i, found)
        store(s + CODES + 16 * i, as_bytes(found))
    return d


@subroutine()
def _put_fives(s: int, at: int, column: int, n_bytes: int, n: int) -> None:
    """Bytes of n codes each, n_bytes columns apart: a number of base 3 with five digits, as a fraction of 243 in
    256ths, rounded up."""
    for i in range(n_bytes):
        number = each(0.0)
        for digit in range(5):
            number = number * each(3.0)
            if digit < n:
                number = number + load(f32x16, s + SEARCHED + ROW * (column + i + n_bytes * digit))
        put(s, at + i, as_bytes((number * each(256.0) + each(242.0)) / each(243.0)))


@subroutine()
def _tq1_0(s: int, importance: int) -> None:
    d = _trits(s)
    _put_fives(s, 0, 0, 32, 5)
    _put_fives(s, 32, 160, 16, 5)
    _put_fives(s, 48, 240, 4, 4)
    put_half(s, 52, d)


@subroutine()
def _tq2_0(s: int, importance: int) -> None:
    d = _trits(s)
    put_pairs(s, 0)
    put_half(s, 64, d)


@subroutine()
def _f16(s: int, importance: int) -> None:
    for i in range(16):
        put_half(s, 2 * i, load(f32x16, s + X + ROW * i))


@subroutine()
def _bf16(s: int, importance: int) -> None:
    for i in range(16):
        bits = bfloat16_bits(load(f32x16, s + X + ROW * i))
        put(s, 2 * i, byte(bits, 0))
        put(s, 2 * i + 1, byte(bits, 1))


MXFP4 = quantizer(__name__, "MXFP4", "MXFP4", _mxfp4)
TQ1_0 = quantizer(__name__, "TQ1_0", "TQ1_0", _tq1_0)
TQ2_0 = quantizer(__name__, "TQ2_0", "TQ2_0", _tq2_0)
F16 = quantizer(__name__, "F16", "F16", _f16)
BF16 = quantizer(__name__, "BF16", "BF16", _bf16)

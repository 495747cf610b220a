"""Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, compiled: twins/legacy.py says what is computed.

Q4_0   d f16 | 16 bytes: codes 0 ... 15 in the low, 16 ... 31 in the high nibbles
Q4_1   d f16 | m f16 | as Q4_0
Q5_0   d f16 | 4 bytes: bit 4 of each code | as Q4_0
Q5_1   d f16 | m f16 | 4 bytes | as Q4_0
Q8_0   d f16 | 32 bytes
"""

from __future__ import annotations

from kernels_cpu.quantize.lanes import ROW, Vector, as_bytes, down, each, low_bits, up
from kernels_cpu.quantize.quantizer import quantizer
from kernels_cpu.quantize.scratch import CODES, D_MINIMUM, MEAN_SQUARE, SEARCHED, WEIGHT, D, X, code, put, put_half
from kernels_cpu.quantize.search import first_extreme, fit_affine, fit_scale, reciprocal_or_0
from kernels_cpu.quantize.weights import weigh_by_importance
from kernels_cpu.simd import f32x16, load, select_less, store, vabs, vmax, vmin
from kernels_cpu.subroutine import subroutine

FIRST, STEP, N_TRIALS = -0.9, 0.05, 37
"""The ranges tried where an importance is given."""


@subroutine()
def put_nibbles(s: int, at: int) -> None:
    """The low nibbles of CODES 0 ... 31 as 16 bytes."""
    for i in range(16):
        put(s, at + i, low_bits(code(s, i), 4) | up(code(s, i + 16), 4))


@subroutine()
def put_fifth_bits(s: int, at: int) -> None:
    """Bit 4 of CODES 0 ... 31 as 4 bytes, the first in the lowest bit."""
    for i in range(4):
        bits = down(code(s, 8 * i), 4)
        for j in range(1, 8):
            bits = bits | up(down(code(s, 8 * i + j), 4), j)
        put(s, at + i, bits)


@subroutine()
def searched_to_codes(s: int, n: int) -> None:
    """SEARCHED as bytes."""
    for i in range(n):
        store(s + CODES + 16 * i, as_bytes(load(f32x16, s + SEARCHED + ROW * i)))


@subroutine()
def _by_extreme(s: int, n: int) -> None:
    """Codes 0 ... 2n - 1 with the extreme value at 0, and their scale D; halves are rounded up."""
    d = first_extreme(s + X, 32) / each(-n)
    factor, high = reciprocal_or_0(d), each(2 * n - 1)
    for i in range(32):
        shifted = load(f32x16, s + X + ROW * i) * factor + (each(n) + each(0.5))
        store(s + CODES + 16 * i, as_bytes(vmin(vmax(shifted, each(0.0)), high)))
    store(s + D, d)


@subroutine()
def _by_range(s: int, n_max: int) -> None:
    """Codes 0 ... n_max from the least value to the largest, their scale D and the least in D_MINIMUM."""
    least, largest = load(f32x16, s + X), load(f32x16, s + X)
    for at in range(ROW, 32 * ROW, ROW):
        v = load(f32x16, s + X + at)
        least, largest = vmin(v, least), vmax(v, largest)
    d = (largest - least) / each(n_max)
    factor = reciprocal_or_0(d)
    for i in range(32):
        shifted = (load(f32x16, s + X + ROW * i) - least) * factor + each(0.5)
        store(s + CODES + 16 * i, as_bytes(vmin(vmax(shifted, each(0.0)), each(n_max))))
    store(s + D, d)
    store(s + D_MINIMUM, least)


@subroutine()
def _by_scale_search(s: int, importance: int, n: int) -> None:
    weigh_by_importance(s, s + X, 32, importance, load(f32x16, s + MEAN_SQUARE))
    fit_scale(s, s + X, s + WEIGHT, 32, n, s + D, s + SEARCHED)
    searched_to_codes(s, 32)


@subroutine()
def _by_affine_search(s: int, importance: int, n_max: int) -> None:
    weigh_by_importance(s, s + X, 32, importance, load(f32x16, s + MEAN_SQUARE))
    fit_affine(s, s + X, s + WEIGHT, 32, n_max, FIRST, STEP, N_TRIALS, s + D, s + D_MINIMUM, s + SEARCHED)
    store(s + D_MINIMUM, each(0.0) - load(f32x16, s + D_MINIMUM))
    searched_to_codes(s, 32)


@subroutine(inlined=True)
def _put_4_0(s: int) -> None:
    put_half(s, 0, load(f32x16, s + D))
    put_nibbles(s, 2)


@subroutine(inlined=True)
def _put_4_1(s: int) -> None:
    put_half(s, 0, load(f32x16, s + D))
    put_half(s, 2, load(f32x16, s + D_MINIMUM))
    put_nibbles(s, 4)


@subroutine(inlined=True)
def _put_5_0(s: int) -> None:
    put_half(s, 0, load(f32x16, s + D))
    put_fifth_bits(s, 2)
    put_nibbles(s, 6)


@subroutine(inlined=True)
def _put_5_1(s: int) -> None:
    put_half(s, 0, load(f32x16, s + D))
    put_half(s, 2, load(f32x16, s + D_MINIMUM))
    put_fifth_bits(s, 4)
    put_nibbles(s, 8)


@subroutine()
def _q4_0(s: int, importance: int) -> None:
    _by_extreme(s, 8)
    _put_4_0(s)


@subroutine()
def _q4_0_weighted(s: int, importance: int) -> None:
    _by_scale_search(s, importance, 8)
    _put_4_0(s)


@subroutine()
def _q4_1(s: int, importance: int) -> None:
    _by_range(s, 15)
    _put_4_1(s)


@subroutine()
def _q4_1_weighted(s: int, importance: int) -> None:
    _by_affine_search(s, importance, 15)
    _put_4_1(s)


@subroutine()
def _q5_0(s: int, importance: int) -> None:
    _by_extreme(s, 16)
    _put_5_0(s)


@subroutine()
def _q5_0_weighted(s: int, importance: int) -> None:
    _by_scale_search(s, importance, 16)
    _put_5_0(s)


@subroutine()
def _q5_1(s: int, importance: int) -> None:
    _by_range(s, 31)
    _put_5_1(s)


@subroutine()
def _q5_1_weighted(s: int, importance: int) -> None:
    _by_affine_search(s, importance, 31)
    _put_5_1(s)


JUST_BELOW_HALF = 0.49999997
"""Added before a fraction is cut off, it rounds to the nearest, of ties the one farther from 0."""


@subroutine(f32x16, inlined=True)
def ready_to_cut(x: Vector, reach: int) -> Vector:
    """What has the nearest whole number, of ties the one farther from 0, in front of its point; within `reach`, since
    the reciprocal of a scale near 0 may be infinite."""
    bounded = vmin(vmax(x, each(-reach)), each(reach))
    return bounded + select_less(x, each(0.0), each(-JUST_BELOW_HALF), each(JUST_BELOW_HALF))


@subroutine()
def _q8_0(s: int, importance: int) -> None:
    d = vabs(first_extreme(s + X, 32)) / each(127.0)
    factor = reciprocal_or_0(d)
    put_half(s, 0, d)
    for i in range(32):
        put(s, 2 + i, as_bytes(ready_to_cut(load(f32x16, s + X + ROW * i) * factor, 127)))


Q4_0 = quantizer(__name__, "Q4_0", "Q4_0", _q4_0)
Q4_0_WEIGHTED = quantizer(__name__, "Q4_0_WEIGHTED", "Q4_0", _q4_0_weighted, wants_square=True)
Q4_1 = quantizer(__name__, "Q4_1", "Q4_1", _q4_1)
Q4_1_WEIGHTED = quantizer(__name__, "Q4_1_WEIGHTED", "Q4_1", _q4_1_weighted, wants_square=True)
Q5_0 = quantizer(__name__, "Q5_0", "Q5_0", _q5_0)
Q5_0_WEIGHTED = quantizer(__name__, "Q5_0_WEIGHTED", "Q5_0", _q5_0_weighted, wants_square=True)
Q5_1 = quantizer(__name__, "Q5_1", "Q5_1", _q5_1)
Q5_1_WEIGHTED = quantizer(__name__, "Q5_1_WEIGHTED", "Q5_1", _q5_1_weighted, wants_square=True)
Q8_0 = quantizer(__name__, "Q8_0", "Q8_0", _q8_0)

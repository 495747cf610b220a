"""Q3_K and Q6_K, compiled: twins/k_types.py says what is computed.

Q3_K   32 bytes: bit 2 of column i, of i + 32, ... | 64 bytes: as in Q2_K | 12 bytes: sixteen 6-bit scales, nibbles of
       0 ... 7 below those of 8 ... 15, then the upper two bits of i, i + 4, i + 8, i + 12 | d f16
Q6_K   128 bytes: of each 128 columns, nibbles of two quarters below those of the other two | 64 bytes: the upper two
       bits, four quarters side by side | 16 scales i8 | d f16
"""

from __future__ import annotations

from kernels_cpu.quantize.k_affine import put_pairs
from kernels_cpu.quantize.lanes import ROW, Vector, as_bytes, down, each, low_bits, nearest, through_half, up
from kernels_cpu.quantize.quantizer import quantizer
from kernels_cpu.quantize.scratch import (
    CODES,
    OUT,
    SCALE_CODES,
    SCALES,
    SEARCHED,
    TOTALS,
    WEIGHT,
    D,
    X,
    code,
    put,
    put_half,
    scale_code,
)
from kernels_cpu.quantize.search import (
    SMALLEST,
    first_extreme,
    fit_scale,
    fit_scale_by_turns,
    sum_of,
    sum_of_squares,
)
from kernels_cpu.quantize.weights import weigh_by_importance, weigh_by_importance_alone, weigh_by_square
from kernels_cpu.simd import f32x16, i8x16, load, select_less, store, vabs
from kernels_cpu.subroutine import subroutine


@subroutine()
def _signed_scales_by_range(s: int) -> None:
    """SCALE_CODES 0 ... 63 for -32 ... 31: the extreme scale gets -32. All are 0 where it is 0."""
    extreme = first_extreme(s + SCALES, 16)
    nothing = each(0.0)
    factor = select_less(nothing, vabs(extreme), each(-32.0) / extreme, nothing)
    shift = select_less(nothing, vabs(extreme), each(32.0), nothing)
    for at in range(0, 16 * ROW, ROW):
        found = nearest(factor * load(f32x16, s + SCALES + at), each(-32.0), each(31.0))
        store(s + SCALE_CODES + at, found + shift)
    store(s + D, select_less(nothing, vabs(extreme), each(1.0) / factor, nothing))


@subroutine()
def _signed_codes(s: int, step: Vector, sub: int, n_codes: int) -> None:
    """CODES of sub-block `sub` of 16 columns for `step`, its scale as it will be read."""
    low, high = each(-n_codes), each(n_codes - 1)
    for i in range(16 * sub, 16 * (sub + 1)):
        found = nearest(load(f32x16, s + X + ROW * i) / step, low, high) - low
        chosen = select_less(each(0.0), vabs(step), found, load(f32x16, s + SEARCHED + ROW * i))
        store(s + CODES + 16 * i, as_bytes(chosen))


@subroutine()
def _put_q3_k(s: int) -> None:
    for sub in range(16):
        step = through_half(load(f32x16, s + D)) * (load(f32x16, s + SCALE_CODES + ROW * sub) - each(32.0))
        _signed_codes(s, step, sub, 4)
    for i in range(32):
        bits = down(code(s, i), 2)
        for j in range(1, 8):
            bits = bits | up(down(code(s, i + 32 * j), 2), j)
        put(s, i, bits)
    put_pairs(s, 32)
    for i in range(8):
        put(s, 96 + i, low_bits(scale_code(s, i), 4) | up(scale_code(s, i + 8), 4))
    for i in range(4):
        low = down(scale_code(s, i), 4) | up(down(scale_code(s, i + 4), 4), 2)
        put(s, 104 + i, low | up(down(scale_code(s, i + 8), 4), 4) | up(down(scale_code(s, i + 12), 4), 6))
    put_half(s, 108, load(f32x16, s + D))


@subroutine()
def _q3_k(s: int, importance: int) -> None:
    for sub in range(16):
        x = s + X + 16 * ROW * sub
        weigh_by_square(s, x, 16)
        fit_scale_by_turns(s, x, s + WEIGHT, 16, 4, s + SCALES + ROW * sub, s + SEARCHED + 16 * ROW * sub)
    _signed_scales_by_range(s)
    _put_q3_k(s)


@subroutine()
def _q3_k_weighted(s: int, importance: int) -> None:
    mean_square = sum_of_squares(s + X, 256) / each(256.0) * each(2.0)
    for sub in range(16):
        x = s + X + 16 * ROW * sub
        weigh_by_importance(s, x, 16, importance + 64 * sub, mean_square)
        store(s + TOTALS + ROW * sub, sum_of(s + WEIGHT, 16))
        fit_scale(s, x, s + WEIGHT, 16, 4, s + SCALES + ROW * sub, s + SEARCHED + 16 * ROW * sub)
    fit_scale(s, s + SCALES, s + TOTALS, 16, 32, s + D, s + SCALE_CODES)
    _put_q3_k(s)


@subroutine(i8x16, inlined=True)
def _upper_pair(s: int, i: int) -> Vector:
    return down(code(s, i), 4)


@subroutine()
def _put_q6_k(s: int) -> None:
    extreme = first_extreme(s + SCALES, 16)
    factor = each(-128.0) / extreme
    d = each(1.0) / factor
    for sub in range(16):
        scale = nearest(factor * load(f32x16, s + SCALES + ROW * sub), each(-128.0), each(127.0))
        store(s + SCALE_CODES + ROW * sub, scale)
        _signed_codes(s, through_half(d) * scale, sub, 32)
    for i in range(128):
        j = i if i < 64 else i + 64
        put(s, i, low_bits(code(s, j), 4) | up(code(s, j + 64), 4))
    for i in range(64):
        j = i if i < 32 else i + 96
        low = _upper_pair(s, j) | up(_upper_pair(s, j + 32), 2)
        put(s, 128 + i, low | up(_upper_pair(s, j + 64), 4) | up(_upper_pair(s, j + 96), 6))
    for sub in range(16):
        put(s, 192 + sub, scale_code(s, sub))
    is_zero, nothing = vabs(extreme), each(0.0)
    put_half(s, 208, select_less(is_zero, each(SMALLEST), nothing, d))
    for i in range(208):
        at = s + OUT + 16 * i
        store(at, select_less(is_zero, each(SMALLEST), as_bytes(nothing), load(i8x16, at)))


@subroutine()
def _q6_k(s: int, importance: int) -> None:
    for sub in range(16):
        x = s + X + 16 * ROW * sub
        weigh_by_square(s, x, 16)
        fit_scale(s, x, s + WEIGHT, 16, 32, s + SCALES + ROW * sub, s + SEARCHED + 16 * ROW * sub)
    _put_q6_k(s)


@subroutine()
def _q6_k_weighted(s: int, importance: int) -> None:
    for sub in range(16):
        weigh_by_importance_alone(s, 16, importance + 64 * sub)
        x = s + X + 16 * ROW * sub
        fit_scale(s, x, s + WEIGHT, 16, 32, s + SCALES + ROW * sub, s + SEARCHED + 16 * ROW * sub)
    _put_q6_k(s)


Q3_K = quantizer(__name__, "Q3_K", "Q3_K", _q3_k)
Q3_K_WEIGHTED = quantizer(__name__, "Q3_K_WEIGHTED", "Q3_K", _q3_k_weighted)
Q6_K = quantizer(__name__, "Q6_K", "Q6_K", _q6_k)
Q6_K_WEIGHTED = quantizer(__name__, "Q6_K_WEIGHTED", "Q6_K", _q6_k_weighted)

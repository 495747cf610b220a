"""Q2_K, Q4_K and Q5_K, compiled: twins/k_types.py says what is computed.

Q2_K   16 bytes: sc and, above it, mn, 4 bits each | 64 bytes: of each 128 columns, four quarters side by side, 2 bits
       each | d f16 | dmin f16
Q4_K   d f16 | dmin f16 | 12 bytes: eight 6-bit sc and mn | 128 bytes: of each 64 columns, the halves side by side
Q5_K   d f16 | dmin f16 | 12 bytes | 32 bytes: bit 4 of column i, of i + 32, ... | as Q4_K
"""

from __future__ import annotations

from kernels_cpu.quantize.lanes import ROW, as_bytes, down, each, low_bits, nearest, through_half, up
from kernels_cpu.quantize.legacy import FIRST, N_TRIALS, STEP
from kernels_cpu.quantize.quantizer import quantizer
from kernels_cpu.quantize.scratch import (
    CODES,
    D_MINIMUM,
    MINIMA,
    MINIMUM_CODES,
    SCALE_CODES,
    SCALES,
    SEARCHED,
    TOTALS,
    WEIGHT,
    D,
    X,
    code,
    minimum_code,
    put,
    put_half,
    scale_code,
)
from kernels_cpu.quantize.search import (
    fit_affine,
    fit_affine_by_magnitude,
    fit_positive,
    sum_of,
    sum_of_squares,
)
from kernels_cpu.quantize.weights import weigh_by_importance, weigh_by_magnitude
from kernels_cpu.simd import f32x16, load, select_less, store, vabs, vmax
from kernels_cpu.subroutine import subroutine


@subroutine()
def scales_by_range(scales: int, n: int, n_max: int, d: int, codes: int) -> None:
    """Codes 0 ... n_max of scales that are not negative, float32 [n][16] to `codes`, and their unit to `d`."""
    largest = each(0.0)
    for at in range(0, ROW * n, ROW):
        largest = vmax(load(f32x16, scales + at), largest)
    high = each(n_max)
    factor = select_less(each(0.0), largest, high / largest, each(0.0))
    for at in range(0, ROW * n, ROW):
        store(codes + at, nearest(factor * load(f32x16, scales + at), each(0.0), high))
    store(d, largest / high)


@subroutine()
def _codes_with_minimum(s: int, sub: int, n_max: int, width: int) -> None:
    """CODES of sub-block `sub` of `width` columns for its scale and minimum as they will be read."""
    d = through_half(load(f32x16, s + D)) * load(f32x16, s + SCALE_CODES + ROW * sub)
    minimum = through_half(load(f32x16, s + D_MINIMUM)) * load(f32x16, s + MINIMUM_CODES + ROW * sub)
    for i in range(width * sub, width * (sub + 1)):
        found = nearest((load(f32x16, s + X + ROW * i) + minimum) / d, each(0.0), each(n_max))
        chosen = select_less(each(0.0), vabs(d), found, load(f32x16, s + SEARCHED + ROW * i))
        store(s + CODES + 16 * i, as_bytes(chosen))


@subroutine()
def _search_weighted(s: int, importance: int, width: int, n_max: int, n_scale: int) -> None:
    """Scales, minima and CODES of 256 / width sub-blocks."""
    n = 256 // width
    mean_square = sum_of_squares(s + X, 256) / each(256.0)
    if width == 32:
        mean_square = mean_square * each(2.0)
    for sub in range(n):
        x, codes = s + X + ROW * width * sub, s + SEARCHED + ROW * width * sub
        weigh_by_importance(s, x, width, importance + 4 * width * sub, mean_square)
        store(s + TOTALS + ROW * sub, sum_of(s + WEIGHT, width))
        scale, minimum = s + SCALES + ROW * sub, s + MINIMA + ROW * sub
        fit_affine(s, x, s + WEIGHT, width, n_max, FIRST, STEP, N_TRIALS, scale, minimum, codes)
    fit_positive(s, s + SCALES, s + TOTALS, n, n_scale, s + D, s + SCALE_CODES)
    fit_positive(s, s + MINIMA, s + TOTALS, n, n_scale, s + D_MINIMUM, s + MINIMUM_CODES)
    for sub in range(n):
        _codes_with_minimum(s, sub, n_max, width)


@subroutine()
def _search_32(s: int, n_max: int, first: float, n_trials: int) -> None:
    """Scales, minima and CODES of 8 sub-blocks of 32 columns."""
    for sub in range(8):
        x, codes = s + X + 32 * ROW * sub, s + SEARCHED + 32 * ROW * sub
        weigh_by_magnitude(s, x, 32)
        scale, minimum = s + SCALES + ROW * sub, s + MINIMA + ROW * sub
        fit_affine(s, x, s + WEIGHT, 32, n_max, first, 0.1, n_trials, scale, minimum, codes)
    scales_by_range(s + SCALES, 8, 63, s + D, s + SCALE_CODES)
    scales_by_range(s + MINIMA, 8, 63, s + D_MINIMUM, s + MINIMUM_CODES)
    for sub in range(8):
        _codes_with_minimum(s, sub, n_max, 32)


@subroutine()
def put_pairs(s: int, at: int) -> None:
    """The lower two bits of 256 CODES as 64 bytes: of each 128, four quarters side by side."""
    for i in range(64):
        j = i if i < 32 else i + 96
        low = low_bits(code(s, j), 2) | up(low_bits(code(s, j + 32), 2), 2)
        put(s, at + i, low | up(low_bits(code(s, j + 64), 2), 4) | up(code(s, j + 96), 6))


@subroutine()
def _put_nibbles(s: int, at: int) -> None:
    """The lower 4 bits of 256 CODES as 128 bytes: of each 64, the halves side by side."""
    for i in range(128):
        j = 2 * i - i % 32
        put(s, at + i, low_bits(code(s, j), 4) | up(code(s, j + 32), 4))


@subroutine()
def _put_scales(s: int) -> None:
    """d and dmin, and eight scales and minima of 6 bits in 12 bytes: the last four are split among the others."""
    put_half(s, 0, load(f32x16, s + D))
    put_half(s, 2, load(f32x16, s + D_MINIMUM))
    for i in range(4):
        sc, later_sc = scale_code(s, i), scale_code(s, i + 4)
        mn, later_mn = minimum_code(s, i), minimum_code(s, i + 4)
        put(s, 4 + i, sc | up(down(later_sc, 4), 6))
        put(s, 8 + i, mn | up(down(later_mn, 4), 6))
        put(s, 12 + i, low_bits(later_sc, 4) | up(later_mn, 4))


@subroutine(inlined=True)
def _put_fifth_bits(s: int, at: int) -> None:
    """Bit 4 of 256 CODES as 32 bytes: byte i has columns i, i + 32, ..."""
    for i in range(32):
        bits = down(code(s, i), 4)
        for j in range(1, 8):
            bits = bits | up(down(code(s, i + 32 * j), 4), j)
        put(s, at + i, bits)


@subroutine(inlined=True)
def _put_q2_k(s: int) -> None:
    for i in range(16):
        put(s, i, scale_code(s, i) | up(minimum_code(s, i), 4))
    put_pairs(s, 16)
    put_half(s, 80, load(f32x16, s + D))
    put_half(s, 82, load(f32x16, s + D_MINIMUM))


@subroutine(inlined=True)
def _put_q4_k(s: int) -> None:
    _put_scales(s)
    _put_nibbles(s, 16)


@subroutine(inlined=True)
def _put_q5_k(s: int) -> None:
    _put_scales(s)
    _put_fifth_bits(s, 16)
    _put_nibbles(s, 48)


@subroutine()
def _q2_k(s: int, importance: int) -> None:
    for sub in range(16):
        x, codes = s + X + 16 * ROW * sub, s + SEARCHED + 16 * ROW * sub
        weigh_by_magnitude(s, x, 16)
        scale, minimum = s + SCALES + ROW * sub, s + MINIMA + ROW * sub
        fit_affine_by_magnitude(s, x, s + WEIGHT, 16, 3, -0.5, 0.1, 16, scale, minimum, codes)
    scales_by_range(s + SCALES, 16, 15, s + D, s + SCALE_CODES)
    scales_by_range(s + MINIMA, 16, 15, s + D_MINIMUM, s + MINIMUM_CODES)
    for sub in range(16):
        _codes_with_minimum(s, sub, 3, 16)
    _put_q2_k(s)


@subroutine()
def _q2_k_weighted(s: int, importance: int) -> None:
    _search_weighted(s, importance, 16, 3, 15)
    _put_q2_k(s)


@subroutine()
def _q4_k(s: int, importance: int) -> None:
    _search_32(s, 15, -1.0, 21)
    _put_q4_k(s)


@subroutine()
def _q4_k_weighted(s: int, importance: int) -> None:
    _search_weighted(s, importance, 32, 15, 63)
    _put_q4_k(s)


@subroutine()
def _q5_k(s: int, importance: int) -> None:
    _search_32(s, 31, -0.5, 16)
    _put_q5_k(s)


@subroutine()
def _q5_k_weighted(s: int, importance: int) -> None:
    _search_weighted(s, importance, 32, 31, 63)
    _put_q5_k(s)


Q2_K = quantizer(__name__, "Q2_K", "Q2_K", _q2_k)
Q2_K_WEIGHTED = quantizer(__name__, "Q2_K_WEIGHTED", "Q2_K", _q2_k_weighted)
Q4_K = quantizer(__name__, "Q4_K", "Q4_K", _q4_k)
Q4_K_WEIGHTED = quantizer(__name__, "Q4_K_WEIGHTED", "Q4_K", _q4_k_weighted)
Q5_K = quantizer(__name__, "Q5_K", "Q5_K", _q5_k)
Q5_K_WEIGHTED = quantizer(__name__, "Q5_K_WEIGHTED", "Q5_K", _q5_k_weighted)

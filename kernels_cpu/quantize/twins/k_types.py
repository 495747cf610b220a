"""Q2_K to Q6_K: 256 columns in sub-blocks, whose scales are codes themselves; it knows no other types.

Formulas are ggml-quants.c's. First each sub-block gets the scale, and the minimum, that lose least; then these become
codes of a few bits; at last the columns get their codes by what is left of the scales.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from kernels_cpu.quantize.twins.arithmetic import (
    SMALLEST,
    Bytes,
    Floats,
    clipped_codes,
    first_extreme,
    halves,
    sum_in_order,
    through_half,
)
from kernels_cpu.quantize.twins.legacy import TRIALS, Quantizer, importance_weight
from kernels_cpu.quantize.twins.searches import (
    Trials,
    fit_positive,
    fit_scale,
    fit_scale_and_minimum,
    fit_scale_by_turns,
)

ZERO = np.float32(0)


class Scaled(NamedTuple):
    """A super-block whose sub-blocks have scales of few bits: scale[j] is about d * codes[j]."""

    d: Floats
    codes: Floats


def _mean_square(x: Floats) -> Floats:
    return sum_in_order(x.reshape(256, -1) ** 2) / np.float32(256)


def _by_range(scales: Floats, n_max: int) -> Scaled:
    """Codes 0 ... n_max of scales that are not negative, [sub-blocks, n]: the largest gets n_max."""
    largest = np.fmax(scales.max(axis=0), ZERO)
    factor = np.where(largest > 0, np.float32(n_max) / largest, ZERO)
    return Scaled(largest / np.float32(n_max), clipped_codes(factor * scales, 0, n_max))


def _final_codes(x: Floats, d: Floats, minimum: Floats | None, low: int, high: int, searched: Floats) -> Floats:
    """Codes for what the file will say; where it says scale 0, those of the search, which nobody reads."""
    shifted = x if minimum is None else x + minimum
    return np.where(d != 0, clipped_codes(shifted / d, low, high) - np.float32(low), searched)


# ------------------------------------------------------------------------- with a minimum


def _affine(
    n: int,
    n_max: int,
    n_scale: int,
    trials: Trials,
    x: Floats,
    importance: Floats | None,
) -> tuple[Scaled, Scaled, Floats]:
    """Scales, minima and codes [256, n] of sub-blocks of n columns."""
    sub = x.reshape(256 // n, n, -1)
    if importance is None:
        fits = [fit_scale_and_minimum(s, _weight(s, n), n_max, trials, by_magnitude=n == 16) for s in sub]
        scales, minima = (_by_range(np.stack(v), n_scale) for v in ([f.scale for f in fits], [f.minimum for f in fits]))
    else:
        square = _mean_square(x) * np.float32(1 if n == 16 else 2)
        weights = [importance_weight(s, w, square) for s, w in zip(sub, importance.reshape(sub.shape), strict=True)]
        fits = [fit_scale_and_minimum(s, w, n_max, TRIALS) for s, w in zip(sub, weights, strict=True)]
        total = np.stack([sum_in_order(w) for w in weights])
        scales = Scaled(*fit_positive(np.stack([f.scale for f in fits]), total, n_scale))
        minima = Scaled(*fit_positive(np.stack([f.minimum for f in fits]), total, n_scale))
    d = through_half(scales.d) * scales.codes
    minimum = through_half(minima.d) * minima.codes
    codes = [_final_codes(s, step, m, 0, n_max, f.codes) for s, f, step, m in zip(sub, fits, d, minimum, strict=True)]
    return scales, minima, np.concatenate(codes)


def _weight(x: Floats, n: int) -> Floats:
    """Without an importance: |x| in sub-blocks of 16, in those of 32 with the root of the mean square added."""
    if n == 16:
        return np.abs(x)
    return np.sqrt(sum_in_order(x * x) / np.float32(32)) + np.abs(x)


def _pairs(codes: Bytes) -> Bytes:
    """The lower two bits of 256 codes: of each 128, four quarters side by side in 32 bytes."""
    c = (codes & 3).reshape(2, 4, 32, -1)
    return (c[:, 0] | c[:, 1] << 2 | c[:, 2] << 4 | c[:, 3] << 6).reshape(64, -1)


def _q2_k(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    scales, minima, codes = _affine(16, 3, 15, Trials(-0.5, 0.1, 16), x, importance)
    both = scales.codes.astype(np.uint8) | minima.codes.astype(np.uint8) << 4
    return np.concatenate([both, _pairs(codes.astype(np.uint8)), halves(scales.d), halves(minima.d)])


def _six_bit_pairs(scales: Floats, minima: Floats) -> Bytes:
    """Eight scales and eight minima of 6 bits in 12 bytes: those of the last four are split among the others."""
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    first = [v[:4] | v[4:] >> 4 << 6 for v in (s, m)]
    return np.concatenate([*first, s[4:] & 15 | (m[4:] & 15) << 4])


def _nibbles(codes: Bytes) -> Bytes:
    """The lower 4 bits of 256 codes: of each 64, the halves side by side in 32 bytes."""
    c = (codes & 15).reshape(4, 2, 32, -1)
    return (c[:, 0] | c[:, 1] << 4).reshape(128, -1)


def _q45_k(bits: int, trials: Trials, x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    scales, minima, found = _affine(32, (1 << bits) - 1, 63, trials, x, importance)
    codes = found.astype(np.uint8)
    fifth = [np.bitwise_or.reduce((codes >> 4).reshape(8, 32, -1) << np.arange(8, dtype=np.uint8)[:, None, None])]
    head = [halves(scales.d), halves(minima.d), _six_bit_pairs(scales.codes, minima.codes)]
    return np.concatenate([*head, *(fifth if bits == 5 else []), _nibbles(codes)])


# ---------------------------------------------------------------------- without a minimum


def _q3_k(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    sub = x.reshape(16, 16, -1)
    if importance is None:
        found = [fit_scale_by_turns(s, 4) for s in sub]
        scales = np.stack([scale for scale, _ in found])
        d, codes = _signed_by_range(scales)
    else:
        square = _mean_square(x) * np.float32(2)
        weights = [importance_weight(s, w, square) for s, w in zip(sub, importance.reshape(sub.shape), strict=True)]
        found = [fit_scale(s, w, 4) for s, w in zip(sub, weights, strict=True)]
        scales = np.stack([scale for scale, _ in found])
        d, codes = fit_scale(scales, np.stack([sum_in_order(w) for w in weights]), 32)
    steps = through_half(d) * (codes - np.float32(32))
    final = [_final_codes(s, step, None, -4, 3, c) for s, step, (_, c) in zip(sub, steps, found, strict=True)]
    columns = np.concatenate(final).astype(np.uint8)
    mask = np.bitwise_or.reduce((columns >> 2).reshape(8, 32, -1) << np.arange(8, dtype=np.uint8)[:, None, None])
    return np.concatenate([mask, _pairs(columns), _six_bits(codes.astype(np.uint8)), halves(d)])


def _signed_by_range(scales: Floats) -> tuple[Floats, Floats]:
    """Codes 0 ... 63 for -32 ... 31: the extreme scale gets -32. All are 0 where it is 0."""
    extreme = first_extreme(scales)
    factor = np.where(extreme != 0, np.float32(-32) / extreme, ZERO)
    codes = np.where(extreme != 0, clipped_codes(factor * scales, -32, 31) + np.float32(32), ZERO)
    return np.where(extreme != 0, np.float32(1) / factor, ZERO), codes


def _six_bits(s: Bytes) -> Bytes:
    """Sixteen codes of 6 bits in 12 bytes: nibbles of 0 ... 7 and 8 ... 15, then the upper pairs of 0, 4, 8, 12; ..."""
    high = (s >> 4).reshape(4, 4, -1)
    return np.concatenate([s[:8] & 15 | (s[8:] & 15) << 4, high[0] | high[1] << 2 | high[2] << 4 | high[3] << 6])


def _q6_k(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    sub = x.reshape(16, 16, -1)
    weights = sub * sub if importance is None else importance.reshape(sub.shape)
    found = [fit_scale(s, w, 32) for s, w in zip(sub, weights, strict=True)]
    scales = np.stack([scale for scale, _ in found])
    extreme = first_extreme(scales)
    is_zero = np.abs(extreme) < SMALLEST
    factor = np.float32(-128) / extreme
    d = np.float32(1) / factor
    codes = clipped_codes(factor * scales, -128, 127)
    steps = through_half(d) * codes
    final = [_final_codes(s, step, None, -32, 31, c) for s, step, (_, c) in zip(sub, steps, found, strict=True)]
    c = np.concatenate(final).astype(np.uint8).reshape(2, 4, 32, -1)
    low = np.concatenate([c[:, :2] & 15 | (c[:, 2:] & 15) << 4]).reshape(128, -1)
    high = (c[:, 0] >> 4 | c[:, 1] >> 4 << 2 | c[:, 2] >> 4 << 4 | c[:, 3] >> 4 << 6).reshape(64, -1)
    block = np.concatenate([low, high, codes.astype(np.int8).view(np.uint8), halves(d)])
    return np.where(is_zero, np.uint8(0), block)


QUANTIZERS: dict[str, Quantizer] = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": partial(_q45_k, 4, Trials(-1.0, 0.1, 21)),
    "Q5_K": partial(_q45_k, 5, Trials(-0.5, 0.1, 16)),
    "Q6_K": _q6_k,
}

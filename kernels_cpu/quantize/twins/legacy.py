"""Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: 32 columns with a scale, and a minimum in those that end in 1; it knows no others.

Formulas are ggml-quants.c's: without an importance the range of the values decides, with one a search.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from kernels_cpu.quantize.twins.arithmetic import Bytes, Floats, first_extreme, halves, reciprocal_or_0, round_half_away
from kernels_cpu.quantize.twins.searches import Trials, fit_scale, fit_scale_and_minimum

Quantizer = Callable[[Floats, "Floats | None", Floats], Bytes]
TRIALS = Trials(-0.9, 0.05, 37)


def nibbles(codes: Floats) -> Bytes:
    """The low 4 bits of codes 0 ... 15 with those of codes 16 ... 31 above them, [32, n] -> [16, n]."""
    low = codes.astype(np.uint8) & 15
    return low[:16] | (low[16:] << 4)


def fifth_bits(codes: Floats) -> Bytes:
    """Bit 4 of 32 codes, the first in the lowest bit: [32, n] -> [4, n]."""
    return np.packbits(codes.astype(np.uint8) >> 4, axis=0, bitorder="little")


def importance_weight(x: Floats, importance: Floats, mean_square: Floats) -> Floats:
    """How much a column's error counts: importance * sqrt(mean square + x²)."""
    return importance * np.sqrt(mean_square + x * x)


def _symmetric(bits: int, x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    n = 1 << (bits - 1)
    if importance is None:
        d = first_extreme(x) / np.float32(-n)
        codes = np.trunc(np.clip(x * reciprocal_or_0(d) + np.float32(n + 0.5), 0, 2 * n - 1))
    else:
        d, codes = fit_scale(x, importance_weight(x, importance, square), n)
    high = [fifth_bits(codes)] if bits == 5 else []
    return np.concatenate([halves(d), *high, nibbles(codes)])


def _affine(bits: int, x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    n_max = (1 << bits) - 1
    if importance is None:
        minimum = x.min(axis=0)
        d = (x.max(axis=0) - minimum) / np.float32(n_max)
        codes = np.trunc(np.clip((x - minimum) * reciprocal_or_0(d) + np.float32(0.5), 0, n_max))
    else:
        d, below, codes = fit_scale_and_minimum(x, importance_weight(x, importance, square), n_max, TRIALS)
        minimum = -below
    high = [fifth_bits(codes)] if bits == 5 else []
    return np.concatenate([halves(d), halves(minimum), *high, nibbles(codes)])


def _q8_0(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    d = np.abs(x).max(axis=0) / np.float32(127)
    return np.concatenate([halves(d), round_half_away(x * reciprocal_or_0(d)).astype(np.int8).view(np.uint8)])


QUANTIZERS: dict[str, Quantizer] = {
    "Q4_0": partial(_symmetric, 4),
    "Q4_1": partial(_affine, 4),
    "Q5_0": partial(_symmetric, 5),
    "Q5_1": partial(_affine, 5),
    "Q8_0": _q8_0,
}

"""IQ4_NL and IQ4_XS: codes are places in a list of 16 values that lie closer around 0; it knows no other types.

Formulas are ggml-quants.c's (quantize_row_iq4_nl_impl).
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.quantize.twins.arithmetic import (
    SMALLEST,
    Bytes,
    Floats,
    clipped_codes,
    first_extreme,
    halves,
    reciprocal_or_0,
    sum_in_order,
)
from kernels_cpu.quantize.twins.legacy import Quantizer, importance_weight, nibbles
from kernels_cpu.quants.iq4_nl import VALUES as LISTED

VALUES = np.array(LISTED, np.float32)
MIDDLES = (VALUES[1:] + VALUES[:-1]) / 2
ZERO, ONE = np.float32(0), np.float32(1)
REACH = 7
"""The extreme value is tried at -127 and at up to so many whole numbers more or less."""


def places(x: Floats) -> Floats:
    """Where in VALUES the nearest is, of two the larger."""
    return np.searchsorted(MIDDLES, x, side="right").astype(np.float32)


def fit_listed(x: Floats, weight: Floats) -> Floats:
    """The scale for x = scale * value: as searches.fit_scale, over the list."""
    extreme = first_extreme(x)
    is_zero = np.abs(extreme) < SMALLEST
    extreme = np.where(is_zero, ONE, extreme)

    def sums(factor: Floats) -> tuple[Floats, Floats]:
        value = VALUES[places(factor * x).astype(int)]
        return sum_in_order(weight * value * x), sum_in_order(weight * value * value)

    product, square = sums(ONE / (-extreme / VALUES[0]))
    scale = np.where(square > 0, product / square, ZERO)
    gain = scale * product
    for i in range(-REACH, REACH + 1):
        product, square = sums((np.float32(i) + VALUES[0]) / extreme)
        is_better = (square > 0) & (product * product > gain * square)
        scale = np.where(is_better, product / square, scale)
        gain = np.where(is_better, scale * product, gain)
    return np.where(is_zero, ZERO, scale)


def _weight(x: Floats, importance: Floats | None, mean_square: Floats) -> Floats:
    return x * x if importance is None else importance_weight(x, importance, mean_square)


def _twice_mean_square(x: Floats) -> Floats:
    return sum_in_order(x * x) * np.float32(2 / len(x))


def _iq4_nl(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    scale = fit_listed(x, _weight(x, importance, _twice_mean_square(x)))
    return np.concatenate([halves(scale), nibbles(places(reciprocal_or_0(scale) * x))])


def _iq4_xs(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    sub, mean_square = x.reshape(8, 32, -1), _twice_mean_square(x)
    importances = [None] * 8 if importance is None else list(importance.reshape(sub.shape))
    scales = np.stack([fit_listed(s, _weight(s, w, mean_square)) for s, w in zip(sub, importances, strict=True)])
    d = -first_extreme(scales) / np.float32(32)
    codes = clipped_codes(reciprocal_or_0(d) * scales, -32, 31)
    steps = reciprocal_or_0(d * codes)
    columns = np.concatenate([nibbles(places(step * s)) for s, step in zip(sub, steps, strict=True)])
    six = (codes + np.float32(32)).astype(np.uint8)
    low = six[0::2] & 15 | (six[1::2] & 15) << 4
    high = (six >> 4).reshape(2, 4, -1)
    high = high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6
    return np.concatenate([halves(d), high, low, columns])


QUANTIZERS: dict[str, Quantizer] = {"IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs}

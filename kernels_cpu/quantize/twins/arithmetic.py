"""Arithmetic of blocks side by side, in float32; it knows no type."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Of float32, uint8 and bool: NumPy's own annotations lose the type of what operators give.
Floats: TypeAlias = NDArray[Any]
Bytes: TypeAlias = NDArray[Any]
Booleans: TypeAlias = NDArray[Any]

SMALLEST = np.float32(1e-15)
"""Blocks without a larger magnitude count as zero where a scale is searched (llama.cpp's GROUP_MAX_EPS)."""


def sum_in_order(terms: Floats) -> Floats:
    """The sum of terms[0], terms[1], ... each added to what there is: NumPy's own sum takes pairs."""
    total = np.zeros(terms.shape[1:], np.float32)
    for term in terms:
        total += term
    return total


def first_extreme(x: Floats) -> Floats:
    """The value of the largest magnitude, the first where several have it; [n, blocks] -> [blocks]."""
    place = np.abs(x).argmax(axis=0)
    return np.take_along_axis(x, place[None], axis=0)[0]


def reciprocal_or_0(x: Floats) -> Floats:
    """1 / x, and 0 for 0."""
    return np.where(x != 0, np.float32(1) / x, np.float32(0))


def halves(x: Floats) -> Bytes:
    """float32 [blocks] as the two bytes of a half, [2, blocks]."""
    return np.ascontiguousarray(x.astype("<f2")).view(np.uint8).reshape(-1, 2).T


def through_half(x: Floats) -> Floats:
    """float32 rounded to what a half can say."""
    return x.astype(np.float16).astype(np.float32)


def clipped_codes(x: Floats, low: int, high: int) -> Floats:
    """The nearest whole number within [low, high], of ties the even one; NaN gives `low`."""
    return np.rint(np.fmin(np.fmax(x, np.float32(low)), np.float32(high)))


def round_half_away(x: Floats) -> Floats:
    """The nearest whole number, of ties the one farther from 0, as C's roundf."""
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= np.float32(0.5), np.sign(x), np.float32(0))

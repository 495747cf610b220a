"""MXFP4, TQ1_0 and TQ2_0: types of trained codes, where nothing is searched; it knows no others."""

from __future__ import annotations

import numpy as np

from kernels_cpu.quantize.twins.arithmetic import Bytes, Floats, halves, reciprocal_or_0, round_half_away
from kernels_cpu.quantize.twins.legacy import Quantizer, nibbles

MXFP4_MIDDLES = np.array([0.5, 1.5, 2.5, 3.5, 5, 7, 10], np.float32)
"""Halfway between the magnitudes of FP4, in halves: 0 1 2 3 4 6 8 12."""


def _mxfp4(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    """A power of two for 32 columns (OCP microscaling formats): the largest magnitude becomes 4 to 8, of at most 6."""
    largest = np.abs(x).max(axis=0)
    exponent = np.where(largest > 0, np.frexp(largest)[1] - 1 - 2 + 127, 0).clip(0, 254)
    unit = np.ldexp(np.float32(1), exponent - 128)
    magnitude = sum((np.abs(x) > middle * unit).astype(np.uint8) for middle in MXFP4_MIDDLES)
    codes = magnitude + np.where((x < 0) & (magnitude > 0), 8, 0)
    return np.concatenate([exponent.astype(np.uint8)[None], nibbles(codes)])


def _trits(x: Floats) -> tuple[Floats, Bytes]:
    """Scale and codes 0, 1, 2 of 256 columns, for -1, 0, 1 times the largest magnitude."""
    d = np.abs(x).max(axis=0)
    return d, (round_half_away(x * reciprocal_or_0(d)) + 1).astype(np.uint8)


def _tq1_0(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    """Five codes a byte, the first worth most, as a fraction of 243 in 256ths."""
    d, codes = _trits(x)
    powers = np.array([81, 27, 9, 3, 1], np.uint16)[:, None, None]
    five = [codes[:160].reshape(5, 32, -1), codes[160:240].reshape(5, 16, -1), codes[240:].reshape(4, 4, -1)]
    number = np.concatenate([(part * powers[: len(part)]).sum(axis=0, dtype=np.uint16) for part in five])
    return np.concatenate([((number * np.uint16(256) + np.uint16(242)) // 243).astype(np.uint8), halves(d)])


def _tq2_0(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    d, codes = _trits(x)
    c = codes.reshape(2, 4, 32, -1)
    return np.concatenate([(c[:, 0] | c[:, 1] << 2 | c[:, 2] << 4 | c[:, 3] << 6).reshape(64, -1), halves(d)])


QUANTIZERS: dict[str, Quantizer] = {"MXFP4": _mxfp4, "TQ1_0": _tq1_0, "TQ2_0": _tq2_0}

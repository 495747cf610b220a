"""F32, F16 and BF16: rounded to the nearest, of ties the even one; it knows no others."""

from __future__ import annotations

import numpy as np

from kernels_cpu.quantize.twins.arithmetic import Bytes, Floats, halves
from kernels_cpu.quantize.twins.legacy import Quantizer


def _f32(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    return np.ascontiguousarray(x[0].astype("<f4")).view(np.uint8).reshape(-1, 4).T


def _f16(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    return halves(x[0])


def _bf16(x: Floats, importance: Floats | None, square: Floats) -> Bytes:
    bits = np.ascontiguousarray(x[0]).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16
    return rounded.astype("<u2").view(np.uint8).reshape(-1, 2).T


QUANTIZERS: dict[str, Quantizer] = {"F32": _f32, "F16": _f16, "BF16": _bf16}

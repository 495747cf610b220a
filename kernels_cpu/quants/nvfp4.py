"""NVFP4: 64 columns in 36 bytes, 4 sub-blocks of 16; value = s / 2·VALUES[code] with MXFP4's values, s in UE4M3.

    GGUF block   s u8 of each sub-block | 32 bytes: 8 for each sub-block, column j in the low, j + 8 in the high nibble
                 of byte j
    packed       for each 32 columns  s u8 x 16 rows of both halves | 4 nibble vectors, in pairs

UE4M3 has 4 bits of exponent, biased by 7, and 3 of mantissa. Moved up by 7 bits they are the halves 2^-8·s, denormals
included. The top bit does not count; 127 means 0 and is packed as 0.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    GROUP_ROWS,
    Bytes,
    Format,
    Header,
    Scales,
    emit_nibble_pairs,
    no_header,
    pack_nibble_pairs,
    pack_super_blocks,
    per_sub,
)
from kernels_cpu.quants.mxfp4 import BIAS, TABLE
from kernels_cpu.simd import I8, I16, V_F32X16, Builder, const, emit_half_to_float, emit_load, emit_lookup, ir


def _pack(v: Bytes) -> Bytes:
    scales = np.where(v[..., :4] == 127, np.uint8(0), v[..., :4] & np.uint8(127))
    qs = v[..., 4:].reshape(*v.shape[:3], 4, 8)
    codes = np.concatenate([qs & 15, qs >> 4], axis=-1).reshape(*v.shape[:3], 2, 32)
    return pack_super_blocks([], [per_sub(scales, 2), pack_nibble_pairs(codes)])


def _scale(b: Builder, p: ir.Value, offset: int) -> ir.Value:
    halves = ir.VectorType(I16, GROUP_ROWS)
    s = b.zext(emit_load(b, ir.VectorType(I8, GROUP_ROWS), p, offset), halves)
    return b.fmul(emit_half_to_float(b, b.shl(s, const(halves, 7))), const(V_F32X16, 128.0))


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    return Scales((_scale(b, p, 0), _scale(b, p, 16)))


FORMAT = Format(
    name="NVFP4",
    type_id=40,
    block_columns=64,
    block_bytes=36,
    header_bytes=0,
    sub_bytes=288,
    max_code=max(TABLE),
    zero_point=BIAS,
    pack=_pack,
    emit_header=no_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: ((k, emit_lookup(b, nibbles, TABLE)) for k, nibbles in emit_nibble_pairs(b, p, 32)),
    n_scales=2,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

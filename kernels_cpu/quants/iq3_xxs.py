"""IQ3_XXS: 256 columns in 98 bytes, 8 sub-blocks of 32; value = d·(2·s + 1) / 2·(+-one of MAGNITUDES).

    GGUF block   d f16 | 64 bytes, places in a grid of 256 times 4 magnitudes, which are twice ours | for each
                 sub-block a u32 of signs and s as in IQ2_XXS
    packed       d f16 x 16 rows, then for each sub-block  2·s + 1 u8 x 16 rows | 4 nibble vectors

A code is a place in TABLE. The kernel looks up single columns, not grids, at the price of 138 bytes a row in place of
98.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    Bytes,
    Format,
    Header,
    emit_halves,
    pack_nibbles,
    pack_super_blocks,
    per_row,
    per_sub,
)
from kernels_cpu.quants.grids import grid, signed_codes, signed_table, words
from kernels_cpu.quants.iq2_xxs import emit_scales, unpack_signs
from kernels_cpu.quants.iq4_nl import emit_nibbles_of_table
from kernels_cpu.simd import V_F32X16, Builder, const, ir

MAGNITUDES = (2, 6, 10, 14, 18, 22, 26, 31)
TABLE = signed_table(MAGNITUDES)


def pack_nibble_blocks(d: Bytes, sc: Bytes, codes: Bytes) -> Bytes:
    """d uint8 [g, 16, nb, 2], sc [g, 16, nb, 8], codes below 16 [g, 16, nb, 8, 32] -> [g, nb, 2208]."""
    return pack_super_blocks([per_row(d)], [per_sub(sc, 8), pack_nibbles(codes)])


def _pack(v: Bytes) -> Bytes:
    u32 = words(v[..., 66:], 4)
    places = grid("IQ3_XXS")[v[..., 2:66]].reshape(*v.shape[:3], 8, 32)
    codes = signed_codes(places, unpack_signs(u32).reshape(places.shape), 8)
    sc = (u32 >> np.uint32(28)).astype(np.uint8) * np.uint8(2) + np.uint8(1)
    return pack_nibble_blocks(v[..., :2], sc, codes)


def _header(b: Builder, p: ir.Value) -> Header:
    return (b.fmul(emit_halves(b, p), const(V_F32X16, 0.5)),)


FORMAT = Format(
    name="IQ3_XXS",
    type_id=18,
    block_columns=256,
    block_bytes=98,
    header_bytes=32,
    sub_bytes=272,
    max_code=max(TABLE),
    zero_point=MAGNITUDES[-1],
    pack=_pack,
    emit_header=_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_nibbles_of_table(b, p, 16, TABLE),
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

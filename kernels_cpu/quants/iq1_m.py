"""IQ1_M: 256 columns in 56 bytes, 16 sub-blocks of 16; value = d·(2·s + 1)·(g +- 1/8), g one of -1, 0, 1.

    GGUF block   32 bytes: the lower 8 bits of places in a grid of 2048 times 8 g | 16 bytes, a nibble a place: its
                 upper 3 bits, then 1 for minus 1/8 | 4 u16, each: four s of 3 bits, then 4 bits of d, the lowest first
    packed       d f16 x 16 rows, then for each 32 columns
                 2·s + 1 u8 x 16 rows of both halves | 3 vectors of 3-bit codes as in Q3_K

The sign of the eighth changes every 8 columns, so that a code says 8·g +- 1, a place in TABLE, and the scale is an
eighth. Packed, a row takes 114 bytes in place of 56.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format
from kernels_cpu.quants.grids import grid, words
from kernels_cpu.quants.iq2_xs import pack_half_scales
from kernels_cpu.quants.iq2_xxs import emit_codes, emit_header
from kernels_cpu.quants.q6_k import emit_scales

VALUES = (-9, -7, -1, 1, 7, 9)
BIAS = 9
TABLE = tuple(v + BIAS for v in VALUES)


def _pack(v: Bytes) -> Bytes:
    nibbles = np.stack([v[..., 32:48] & 15, v[..., 32:48] >> 4], axis=-1).reshape(*v.shape[:3], 32)
    places = v[..., :32] | ((nibbles & np.uint8(7)).astype(np.uint16) << np.uint16(8))
    plus = np.uint8(1) - (nibbles >> np.uint8(3))
    codes = (2 * grid("IQ1_M")[places] + plus[..., None]).reshape(*v.shape[:3], 8, 32)
    u16 = words(v[..., 48:], 2)
    s = (u16[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    sc = (2 * s + 1).astype(np.uint8).reshape(*v.shape[:3], 16)
    d = np.bitwise_or.reduce((u16 >> np.uint16(12)) << np.array([0, 4, 8, 12], np.uint16), axis=-1, keepdims=True)
    return pack_half_scales(d.astype("<u2").view(np.uint8), sc, codes)


FORMAT = Format(
    name="IQ1_M",
    type_id=29,
    block_columns=256,
    block_bytes=56,
    header_bytes=32,
    sub_bytes=224,
    max_code=max(TABLE),
    zero_point=BIAS,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_codes(b, p, 32, TABLE),
    n_scales=2,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

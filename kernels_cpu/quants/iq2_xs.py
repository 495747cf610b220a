"""IQ2_XS: 256 columns in 74 bytes, 16 sub-blocks of 16; value = d·(2·s + 1) / 8·(+-8, 25 or 43).

GGUF block   d f16 | 32 u16, each of 8 columns: place in a grid of 512 in the lower 9 bits, then 7 signs as in
             IQ2_XXS | 8 bytes of s, a nibble a sub-block
packed       d f16 x 16 rows, then for each 32 columns
             2·s + 1 u8 x 16 rows of both halves | 3 vectors of 3-bit codes as in IQ2_XXS
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format, code_vectors, pack_super_blocks, per_row, per_sub
from kernels_cpu.quants.grids import grid, sign_bits, signed_codes, with_parity, words
from kernels_cpu.quants.iq2_xxs import MAGNITUDES, TABLE, emit_codes, emit_header
from kernels_cpu.quants.q3_k import pack_three_bits
from kernels_cpu.quants.q6_k import emit_scales


def odd_scales(nibbles: Bytes) -> Bytes:
    """2·s + 1 of each nibble, the low one first: uint8 [..., n] -> [..., 2n]."""
    s = np.stack([nibbles & 15, nibbles >> 4], axis=-1).reshape(*nibbles.shape[:-1], -1)
    return s * np.uint8(2) + np.uint8(1)


def pack_half_scales(d: Bytes, sc: Bytes, codes: Bytes) -> Bytes:
    """d uint8 [g, 16, nb, 2], sc [g, 16, nb, 16], 3-bit codes [g, 16, nb, 8, 32] -> [g, nb, 1824]."""
    return pack_super_blocks([per_row(d)], [per_sub(sc, 8), pack_three_bits(code_vectors(codes))])


def _pack(v: Bytes) -> Bytes:
    qs = words(v[..., 2:66], 2)
    signs = sign_bits(with_parity((qs >> np.uint16(9)).astype(np.uint8)))
    codes = signed_codes(grid("IQ2_XS")[qs & np.uint16(511)], signs, 3).reshape(*v.shape[:3], 8, 32)
    return pack_half_scales(v[..., :2], odd_scales(v[..., 66:]), codes)


FORMAT = Format(
    name="IQ2_XS",
    type_id=17,
    block_columns=256,
    block_bytes=74,
    header_bytes=32,
    sub_bytes=224,
    max_code=max(TABLE),
    zero_point=MAGNITUDES[-1],
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_codes(b, p, 32, TABLE),
    n_scales=2,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

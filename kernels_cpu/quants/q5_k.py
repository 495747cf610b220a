"""Q5_K: 256 columns in 176 bytes, 8 sub-blocks of 32; value = d·sc·code - dmin·mn.

GGUF block   d f16 | dmin f16 | 12 bytes of scales as in Q4_K | qh 32 bytes: bit j of byte i is the fifth
             bit of column i of sub-block j | 128 bytes of nibbles as in Q4_K
packed       d f16 x 16 rows | dmin f16 x 16 rows, then for each sub-block
             sc u8 x 16 rows | mn u8 x 16 rows | plane of fifth bits, 64 bytes | 4 nibble vectors
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format, pack_nibbles, pack_plane, per_row
from kernels_cpu.quants.q4_k import emit_header, emit_scales, pack_super_blocks, unpack_codes, unpack_scales
from kernels_cpu.quants.q5_0 import emit_five_bits


def _pack(v: Bytes) -> Bytes:
    sc, mn = unpack_scales(v[..., 4:16])
    qh, codes = v[..., 16:48], unpack_codes(v[..., 48:])
    subs = (
        [
            per_row(sc[..., j : j + 1]),
            per_row(mn[..., j : j + 1]),
            pack_plane((qh >> np.uint8(j)) & np.uint8(1), 1),
            pack_nibbles(codes[..., j, :]),
        ]
        for j in range(8)
    )
    return pack_super_blocks([per_row(v[..., :2]), per_row(v[..., 2:4])], subs)


FORMAT = Format(
    name="Q5_K",
    type_id=13,
    block_columns=256,
    block_bytes=176,
    header_bytes=64,
    sub_bytes=352,
    max_code=31,
    zero_point=0,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_five_bits(b, p, 32, 96),
    n_minimums=1,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

"""Q2_0: 64 columns in 18 bytes; value = d·(code - 1), codes of 2 bits.

GGUF block   d f16 | 16 bytes: column 4i + j in bits 2j, 2j + 1 of byte i
packed       d f16 x 16 rows, then for each 32 columns 2 planes of codes as in Q2_K
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format, pack_super_blocks, pack_two_bits, per_row
from kernels_cpu.quants.q2_k import emit_two_bits
from kernels_cpu.quants.q6_k import emit_header
from kernels_cpu.quants.tq2_0 import emit_scales


def _pack(v: Bytes) -> Bytes:
    codes = (v[..., 2:, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    return pack_super_blocks([per_row(v[..., :2])], [pack_two_bits(codes.reshape(*v.shape[:3], 2, 32))])


FORMAT = Format(
    name="Q2_0",
    type_id=42,
    block_columns=64,
    block_bytes=18,
    header_bytes=32,
    sub_bytes=128,
    max_code=3,
    zero_point=1,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_two_bits(b, p, 0),
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

"""Q5_K: 256 columns in 176 bytes, 8 sub-blocks of 32; value = d·sc·code - dmin·mn.

GGUF block   d f16 | dmin f16 | 12 bytes of scales as in Q4_K | qh 32 bytes: bit j of byte i is the fifth
             bit of column i of sub-block j | 128 bytes of nibbles as in Q4_K
packed       d f16 x 16 rows | dmin f16 x 16 rows, then for each sub-block
             sc u8 x 16 rows | mn u8 x 16 rows | plane of fifth bits, 64 bytes | 4 nibble vectors
"""

from __future__ import annotations

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format, interleave_apart, pack_super_blocks, per_row, transpose_fields
from kernels_cpu.quants.q4_k import emit_header, emit_scales, pack_codes, pack_scales
from kernels_cpu.quants.q5_0 import emit_five_bits


def _fifth_bits(qh: Bytes) -> Bytes:
    """Bits of 8 sub-blocks in each of 32 bytes, uint8 [g, 16, nb, 32] -> planes, [g, nb, 8, 64]."""
    piles = transpose_fields(interleave_apart(qh, 8), 1)  # [sub-block, g, nb, 1, 64]
    return piles.transpose(1, 2, 0, 3, 4).reshape(*piles.shape[1:3], 8, 64)


def _pack(v: Bytes) -> Bytes:
    head = [per_row(v[..., :2]), per_row(v[..., 2:4])]
    return pack_super_blocks(head, [*pack_scales(v[..., 4:16]), _fifth_bits(v[..., 16:48]), pack_codes(v[..., 48:])])


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

"""TQ2_0: 256 columns in 66 bytes; value = d·(code - 1), codes of 2 bits.

GGUF block   64 bytes of codes as in Q2_K | d f16
packed       d f16 x 16 rows, then for each 32 columns 2 planes of codes as in Q2_K
"""

from __future__ import annotations

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format, Header, Scales, pack_super_blocks, per_row
from kernels_cpu.quants.q2_k import emit_two_bits, transpose_two_bits
from kernels_cpu.quants.q6_k import emit_header
from kernels_cpu.simd import Builder, ir


def emit_scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    """d for all columns of the block."""
    return Scales((header[0],))


def _pack(v: Bytes) -> Bytes:
    return pack_super_blocks([per_row(v[..., 64:])], [transpose_two_bits(v[..., :64])])


FORMAT = Format(
    name="TQ2_0",
    type_id=35,
    block_columns=256,
    block_bytes=66,
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

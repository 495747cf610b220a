"""Q1_0: 128 columns in 18 bytes; value = d where the bit is set, else -d, so that the code is twice the bit, less 1.

GGUF block   d f16 | 16 bytes: column 8i + j in bit j of byte i
packed       d f16 x 16 rows, then for each 32 columns a plane of 64 bytes: bit k for code vector k
"""

from __future__ import annotations

from collections.abc import Iterator

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format, emit_plane, pack_bits, pack_super_blocks, per_row
from kernels_cpu.quants.q6_k import emit_header
from kernels_cpu.quants.tq2_0 import emit_scales
from kernels_cpu.simd import V_I8X64, Builder, emit_load, ir


def _pack(v: Bytes) -> Bytes:
    return pack_super_blocks([per_row(v[..., :2])], [pack_bits(v[..., 2:])])


def _codes(b: Builder, p: ir.Value) -> Iterator[tuple[int, ir.Value]]:
    plane = emit_load(b, V_I8X64, p)
    for k in range(8):
        yield k, emit_plane(b, plane, k, 1, 1)


FORMAT = Format(
    name="Q1_0",
    type_id=41,
    block_columns=128,
    block_bytes=18,
    header_bytes=32,
    sub_bytes=64,
    max_code=2,
    zero_point=1,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=_codes,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

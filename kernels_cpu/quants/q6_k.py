"""Q6_K: 256 columns in 210 bytes, 16 sub-blocks of 16; value = d·sc·(code - 32).

GGUF block   ql 128 bytes | qh 64 bytes | sc i8[16] | d f16. Of each 128 columns, with l in 0..31: columns l and
             l + 64 are the low and high nibbles of ql[l], l + 32 and l + 96 those of ql[l + 32]; bits 2j, 2j + 1
             of qh[l] belong to column l + 32j
packed       d f16 x 16 rows, then for each 32 columns
             sc i8 x 16 rows of both halves | 2 planes of upper bits: bits 2i of plane p for code vector 4p + i
             | 4 nibble vectors, in pairs
"""

from __future__ import annotations

from collections.abc import Iterator

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    Bytes,
    Format,
    Header,
    Scales,
    emit_bytes,
    emit_halves,
    emit_nibble_pairs,
    emit_plane,
    interleave_apart,
    pack_super_blocks,
    per_row,
    per_sub,
    transpose_fields,
)
from kernels_cpu.quants.q2_k import transpose_two_bits
from kernels_cpu.simd import V_I8X64, Builder, emit_load, ir


def _lower_bits(ql: Bytes) -> Bytes:
    """uint8 [g, 16, nb, 128] -> nibble vectors in pairs, [g, nb, 8, 256]."""
    piles = transpose_fields(interleave_apart(ql, 2), 4)
    piles = piles.reshape(*piles.shape[:3], 2, 2, 256)  # [64 of 128 columns, g, nb, 128 of 256, 32 of 64, 256]
    return piles.transpose(1, 2, 3, 0, 4, 5).reshape(*piles.shape[1:3], 8, 256)


def _pack(v: Bytes) -> Bytes:
    subs = [per_sub(v[..., 192:208], 8), transpose_two_bits(v[..., 128:192]), _lower_bits(v[..., :128])]
    return pack_super_blocks([per_row(v[..., 208:])], subs)


def emit_header(b: Builder, p: ir.Value) -> Header:
    """d of 16 rows."""
    return (emit_halves(b, p),)


def emit_scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    """d·sc of 16 rows for each half."""
    return Scales(tuple(b.fmul(header[0], emit_bytes(b, p, 16 * h, signed=True)) for h in range(2)))


def _codes(b: Builder, p: ir.Value) -> Iterator[tuple[int, ir.Value]]:
    planes = [emit_load(b, V_I8X64, p, 32), emit_load(b, V_I8X64, p, 96)]
    for k, nibbles in emit_nibble_pairs(b, p, 160):
        yield k, b.or_(nibbles, emit_plane(b, planes[k // 4], k % 4, 2, 4))


FORMAT = Format(
    name="Q6_K",
    type_id=14,
    block_columns=256,
    block_bytes=210,
    header_bytes=32,
    sub_bytes=416,
    max_code=63,
    zero_point=32,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=_codes,
    n_scales=2,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

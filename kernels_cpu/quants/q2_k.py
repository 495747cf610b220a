"""Q2_K: 256 columns in 84 bytes, 16 sub-blocks of 16; value = d·sc·code - dmin·mn.

GGUF block   16 bytes: sc in the low, mn in the high nibbles | 64 bytes: of each 128 columns, bits 2j, 2j + 1 of
             byte l belong to column l + 32j | d f16 | dmin f16
packed       d f16 x 16 rows | dmin f16 x 16 rows, then for each 32 columns
             the byte of sc and mn x 16 rows of both halves | 2 planes of codes: bits 2i of plane p for code
             vector 4p + i
"""

from __future__ import annotations

from collections.abc import Iterator

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    GROUP_ROWS,
    Bytes,
    Format,
    Header,
    Scales,
    emit_plane,
    interleave_apart,
    pack_super_blocks,
    per_row,
    per_sub,
    transpose_fields,
)
from kernels_cpu.quants.q4_k import emit_header
from kernels_cpu.simd import I8, V_F32X16, V_I8X64, V_I32X16, Builder, const, emit_load, ir


def transpose_two_bits(qs: Bytes) -> Bytes:
    """Codes of 128 columns in 32 bytes, bits 2j.. for run j of 32, uint8 [g, 16, nb, 64] -> planes, [g, nb, 8, 128]."""
    piles = transpose_fields(interleave_apart(qs, 4), 2)
    piles = piles.reshape(*piles.shape[:3], 2, 128)  # [run of 4, g, nb, half, 128]
    return piles.transpose(1, 2, 3, 0, 4).reshape(*piles.shape[1:3], 8, 128)


def emit_two_bits(b: Builder, p: ir.Value, offset: int) -> Iterator[tuple[int, ir.Value]]:
    """The 8 code vectors of 2 planes at `p + offset`."""
    for k in range(8):
        if k % 4 == 0:
            plane = emit_load(b, V_I8X64, p, offset + 16 * k)
        yield k, emit_plane(b, plane, k % 4, 2, 0)


def _pack(v: Bytes) -> Bytes:
    head = [per_row(v[..., 80:82]), per_row(v[..., 82:84])]
    return pack_super_blocks(head, [per_sub(v[..., :16], 8), transpose_two_bits(v[..., 16:80])])


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    d, dmin = header
    pairs = [b.zext(emit_load(b, ir.VectorType(I8, GROUP_ROWS), p, 16 * h), V_I32X16) for h in range(2)]
    sc = tuple(b.fmul(d, b.sitofp(b.and_(x, const(V_I32X16, 15)), V_F32X16)) for x in pairs)
    mn = tuple(b.fmul(dmin, b.sitofp(b.lshr(x, const(V_I32X16, 4)), V_F32X16)) for x in pairs)
    return Scales(sc, half_minimums=mn)


FORMAT = Format(
    name="Q2_K",
    type_id=10,
    block_columns=256,
    block_bytes=84,
    header_bytes=64,
    sub_bytes=160,
    max_code=3,
    zero_point=0,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: emit_two_bits(b, p, 32),
    n_scales=2,
    n_minimums=2,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

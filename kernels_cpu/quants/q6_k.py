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

import numpy as np

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
    pack_nibble_pairs,
    pack_plane,
    per_row,
)
from kernels_cpu.quants.q4_k import pack_super_blocks
from kernels_cpu.simd import V_I8X64, Builder, emit_load, ir


def unpack_codes(ql: Bytes, qh: Bytes) -> tuple[Bytes, Bytes]:
    """Lower 4 and upper 2 bits by run of 32 columns: uint8 [..., 128] and [..., 64] -> two of [..., 8, 32]."""
    low = ql.reshape(*ql.shape[:-1], 2, 1, 2, 32)
    low = np.concatenate([low & 15, low >> 4], axis=-3)
    high = qh.reshape(*qh.shape[:-1], 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    return low.reshape(*ql.shape[:-1], 8, 32), (high & np.uint8(3)).reshape(*qh.shape[:-1], 8, 32)


def _pack(v: Bytes) -> Bytes:
    low, high = unpack_codes(v[..., :128], v[..., 128:192])
    sc = v[..., 192:208]
    subs = ([*per_half(sc, j), pack_plane(high[..., j, :], 2), pack_nibble_pairs(low[..., j, :])] for j in range(8))
    return pack_super_blocks([per_row(v[..., 208:])], subs)


def per_half(sc: Bytes, j: int) -> list[Bytes]:
    """The bytes of both halves of sub-block j, uint8 [g, 16, nb, 16] -> two of [g, nb, 16]."""
    return [per_row(sc[..., 2 * j + h : 2 * j + h + 1]) for h in range(2)]


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

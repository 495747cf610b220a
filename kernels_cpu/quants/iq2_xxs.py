"""IQ2_XXS: 256 columns in 66 bytes, 8 sub-blocks of 32; value = d·(2·s + 1) / 8·(+-8, 25 or 43).

    GGUF block   d f16, then for each sub-block  4 bytes, places in a grid of 256 times 8 magnitudes | u32: of each 8
                 columns 7 signs, the eighth makes their number even | s in the upper 4 bits
    packed       d f16 x 16 rows, then for each sub-block  2·s + 1 u8 x 16 rows | 3 vectors of 3-bit codes as in Q3_K

A code is a place in TABLE. The kernel looks up single columns, not grids, at the price of 106 bytes a row in place of
66 (IQ2_XS and IQ2_S, which have two scales, 114 in place of 74 and 82).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    Bytes,
    Format,
    Header,
    Scales,
    code_vectors,
    emit_bytes,
    emit_halves,
    pack_super_blocks,
    per_row,
    per_sub,
)
from kernels_cpu.quants.grids import grid, sign_bits, signed_codes, signed_table, with_parity, words
from kernels_cpu.quants.q3_k import emit_three_bits, pack_three_bits
from kernels_cpu.simd import V_F32X16, Builder, const, emit_lookup, ir

MAGNITUDES = (8, 25, 43)
TABLE = signed_table(MAGNITUDES)


def unpack_signs(u32: np.ndarray) -> Bytes:
    """Signs of 32 columns from 4 x 7 bits, uint32 [..., n] -> uint8 [..., n, 4, 8]."""
    seven = (u32[..., None] >> np.array([0, 7, 14, 21], np.uint32)) & np.uint32(127)
    return sign_bits(with_parity(seven.astype(np.uint8)))


def _pack(v: Bytes) -> Bytes:
    subs = v[..., 2:].reshape(*v.shape[:3], 8, 8)
    u32 = words(subs[..., 4:], 4)[..., 0]
    codes = signed_codes(grid("IQ2_XXS")[subs[..., :4]], unpack_signs(u32), 3).reshape(*v.shape[:3], 8, 32)
    sc = (u32 >> np.uint32(28)).astype(np.uint8) * np.uint8(2) + np.uint8(1)
    return pack_super_blocks([per_row(v[..., :2])], [per_sub(sc, 8), pack_three_bits(code_vectors(codes))])


def emit_header(b: Builder, p: ir.Value) -> Header:
    """d / 8 of 16 rows, exact in float32."""
    return (b.fmul(emit_halves(b, p), const(V_F32X16, 0.125)),)


def emit_codes(b: Builder, p: ir.Value, offset: int, table: Sequence[int]) -> Iterator[tuple[int, ir.Value]]:
    """3-bit codes at `p + offset` looked up in a table of up to 8."""
    for k, codes in emit_three_bits(b, p, offset):
        yield k, emit_lookup(b, codes, table)


def emit_scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    """The header's number times an unsigned byte of 16 rows."""
    return Scales((b.fmul(header[0], emit_bytes(b, p, 0, signed=False)),))


FORMAT = Format(
    name="IQ2_XXS",
    type_id=16,
    block_columns=256,
    block_bytes=66,
    header_bytes=32,
    sub_bytes=208,
    max_code=max(TABLE),
    zero_point=MAGNITUDES[-1],
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_codes(b, p, 16, TABLE),
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

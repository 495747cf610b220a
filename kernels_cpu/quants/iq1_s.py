"""IQ1_S: 256 columns in 50 bytes, 8 sub-blocks of 32; value = d·(2·s + 1)·(g +- 1/8), g one of -1, 0, 1.

    GGUF block   d f16 | 32 bytes: the lower 8 bits of places in a grid of 2048 times 8 g | for each sub-block a u16:
                 four times the upper 3 bits of a place, then s in 3 bits, then 1 for minus 1/8
    packed       d f16 x 16 rows, then for each sub-block
                 2·s + 1 i8 x 16 rows, negative for minus 1/8 | 2 planes of codes g + 1 as in Q2_K

The eighth is the minimum of the sub-block. Packed, a row takes 74 bytes in place of 50.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    Bytes,
    Format,
    Header,
    Scales,
    emit_bytes,
    pack_super_blocks,
    pack_two_bits,
    per_row,
    per_sub,
)
from kernels_cpu.quants.grids import grid, words
from kernels_cpu.quants.q2_k import emit_two_bits
from kernels_cpu.quants.q6_k import emit_header
from kernels_cpu.simd import V_F32X16, Builder, const, emit_abs, ir


def _pack(v: Bytes) -> Bytes:
    qh = words(v[..., 34:], 2)
    high = (qh[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    places = v[..., 2:34] | (high.reshape(*v.shape[:3], 32) << np.uint16(8))
    codes = grid("IQ1_S")[places].reshape(*v.shape[:3], 8, 32)
    odd = (2 * ((qh >> np.uint16(12)) & np.uint16(7)) + 1).astype(np.int8)
    sc = np.where(qh >> np.uint16(15), -odd, odd).view(np.uint8)
    return pack_super_blocks([per_row(v[..., :2])], [per_sub(sc, 8), pack_two_bits(codes)])


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    sc = emit_bytes(b, p, 0, signed=True)
    eighth = b.fmul(b.fmul(header[0], sc), const(V_F32X16, 0.125))
    return Scales((b.fmul(header[0], emit_abs(b, sc)),), eighth)


FORMAT = Format(
    name="IQ1_S",
    type_id=19,
    block_columns=256,
    block_bytes=50,
    header_bytes=32,
    sub_bytes=144,
    max_code=2,
    zero_point=1,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: emit_two_bits(b, p, 16),
    n_minimums=1,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

"""Q4_K: 256 columns in 144 bytes, 8 sub-blocks of 32; value = d·sc·code - dmin·mn.

    GGUF block   d f16 | dmin f16 | 12 bytes: eight 6-bit sc and mn | 128 bytes: of each 64 columns, the
                 first 32 in the low and the last 32 in the high nibbles of 32 bytes
    packed       d f16 x 16 rows | dmin f16 x 16 rows, then for each sub-block
                 sc u8 x 16 rows | mn u8 x 16 rows | 4 nibble vectors

The scales are unpacked to bytes (3 % more memory): unpacking them in the kernel costs more than reading them.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    GROUP_ROWS,
    Bytes,
    Format,
    Header,
    Scales,
    emit_bytes,
    emit_halves,
    emit_nibbles,
    interleave_apart,
    pack_super_blocks,
    per_row,
    transpose_fields,
)
from kernels_cpu.simd import Builder, ir


def pack_scales(s: Bytes) -> list[Bytes]:
    """12 bytes of 6-bit pairs, uint8 [g, 16, nb, 12] -> sc and mn, each [g, nb, 8, 16]."""
    low, middle, high = interleave_apart(s, 3)
    sc = low & 63, (high & 15) | ((low >> 2) & 48)
    mn = middle & 63, (high >> 4) | ((middle >> 2) & 48)
    return [_by_sub_block(np.concatenate(x, axis=2)) for x in (sc, mn)]


def _by_sub_block(v: Bytes) -> Bytes:
    """Interleaved bytes of 8 sub-blocks, [g, nb, 2, 64] -> [g, nb, 8, 16]."""
    return v.reshape(*v.shape[:3], GROUP_ROWS, 4).swapaxes(3, 4).reshape(*v.shape[:2], 8, GROUP_ROWS)


def pack_codes(qs: Bytes) -> Bytes:
    """Nibbles of 64 columns in 32 bytes, uint8 [g, 16, nb, 128] -> those of sub-blocks, [g, nb, 8, 256]."""
    piles = transpose_fields(interleave_apart(qs, 2, 4), 4)  # [sub-block of 2, g, nb, 4, 256]
    return piles.transpose(1, 2, 3, 0, 4).reshape(*piles.shape[1:3], 8, 256)


def _pack(v: Bytes) -> Bytes:
    head = [per_row(v[..., :2]), per_row(v[..., 2:4])]
    return pack_super_blocks(head, [*pack_scales(v[..., 4:16]), pack_codes(v[..., 16:])])


def emit_header(b: Builder, p: ir.Value) -> Header:
    """d and -dmin of 16 rows."""
    return emit_halves(b, p), b.fneg(emit_halves(b, p, 32))


def emit_scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    """d·sc and -dmin·mn of 16 rows."""
    d, dmin = header
    sc, mn = emit_bytes(b, p, 0, signed=False), emit_bytes(b, p, 16, signed=False)
    return Scales((b.fmul(d, sc),), b.fmul(dmin, mn))


FORMAT = Format(
    name="Q4_K",
    type_id=12,
    block_columns=256,
    block_bytes=144,
    header_bytes=64,
    sub_bytes=288,
    max_code=15,
    zero_point=0,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_nibbles(b, p, 32),
    n_minimums=1,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

"""IQ4_XS: 256 columns in 136 bytes, 8 sub-blocks of 32; value = d·(sc - 32)·VALUES[code] with IQ4_NL's values.

    GGUF block   d f16 | u16: the upper 2 bits of the sc of sub-block j at bit 2j | 4 bytes: the lower 4 bits of
                 sub-blocks 2i and 2i + 1 in the low and the high nibble of byte i | 128 bytes: 16 for each sub-block,
                 nibbles as in Q4_0
    packed       d f16 x 16 rows, then for each sub-block  sc - 32 i8 x 16 rows | 4 nibble vectors

The scales take whole bytes: 138 bytes a row in place of 136.
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
    interleave,
    pack_super_blocks,
    per_row,
    per_sub,
)
from kernels_cpu.quants.iq4_nl import BIAS, TABLE, emit_nibbles_of_table
from kernels_cpu.quants.q6_k import emit_header
from kernels_cpu.simd import Builder, ir


def unpack_scales(s: Bytes) -> Bytes:
    """6 bytes of eight 6-bit numbers less 32, uint8 [..., 6] -> signed bytes as uint8 [..., 8]."""
    low = np.stack([s[..., 2:] & 15, s[..., 2:] >> 4], axis=-1).reshape(*s.shape[:-1], 8)
    high = (s[..., :2, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    return (low | (high.reshape(low.shape) << np.uint8(4))) - np.uint8(32)


def _pack(v: Bytes) -> Bytes:
    qs = interleave(v[..., 8:])
    subs = [per_sub(unpack_scales(v[..., 2:8]), 8), qs.reshape(*qs.shape[:2], 8, 256)]
    return pack_super_blocks([per_row(v[..., :2])], subs)


def emit_scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    """d·sc of 16 rows, sc a signed byte."""
    return Scales((b.fmul(header[0], emit_bytes(b, p, 0, signed=True)),))


FORMAT = Format(
    name="IQ4_XS",
    type_id=23,
    block_columns=256,
    block_bytes=136,
    header_bytes=32,
    sub_bytes=272,
    max_code=max(TABLE),
    zero_point=BIAS,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_nibbles_of_table(b, p, 16, TABLE),
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

"""Q5_1: 32 columns in 24 bytes; value = d·code + m.

GGUF block   d f16 | m f16 | qh u32 as in Q5_0 | 16 bytes of nibbles as in Q4_0
packed       d f16 x 16 rows | m f16 x 16 rows | plane of fifth bits, 64 bytes | 4 nibble vectors
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    Bytes,
    Format,
    Header,
    Scales,
    emit_halves,
    interleave,
    no_header,
    pack_bits,
    per_row,
)
from kernels_cpu.quants.q5_0 import emit_five_bits
from kernels_cpu.simd import Builder, ir


def _pack(v: Bytes) -> Bytes:
    fifth, qs = pack_bits(v[..., 4:8])[:, :, 0], interleave(v[..., 8:])
    scales = [per_row(v[..., :2]), per_row(v[..., 2:4])]
    return np.concatenate([*scales, fifth, qs.reshape(*qs.shape[:2], 256)], axis=-1)


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    return Scales((emit_halves(b, p),), emit_halves(b, p, 32))


FORMAT = Format(
    name="Q5_1",
    type_id=7,
    block_columns=32,
    block_bytes=24,
    header_bytes=0,
    sub_bytes=384,
    max_code=31,
    zero_point=0,
    pack=_pack,
    emit_header=no_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: emit_five_bits(b, p, 64, 128),
    n_minimums=1,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

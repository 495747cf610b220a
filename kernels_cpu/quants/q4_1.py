"""Q4_1: 32 columns in 20 bytes; value = d·code + m.

GGUF block   d f16 | m f16 | 16 bytes of nibbles as in Q4_0
packed       d f16 x 16 rows | m f16 x 16 rows | 4 nibble vectors
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
    emit_nibbles,
    interleave,
    no_header,
    per_row,
)
from kernels_cpu.simd import Builder, ir


def _pack(v: Bytes) -> Bytes:
    qs = interleave(v[..., 4:])
    return np.concatenate([per_row(v[..., :2]), per_row(v[..., 2:4]), qs.reshape(*qs.shape[:2], 256)], axis=-1)


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    return Scales((emit_halves(b, p),), emit_halves(b, p, 32))


FORMAT = Format(
    name="Q4_1",
    type_id=3,
    block_columns=32,
    block_bytes=20,
    header_bytes=0,
    sub_bytes=320,
    max_code=15,
    zero_point=0,
    pack=_pack,
    emit_header=no_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: emit_nibbles(b, p, 64),
    n_minimums=1,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

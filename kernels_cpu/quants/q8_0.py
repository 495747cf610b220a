"""Q8_0: 32 columns in 34 bytes; value = d·q.

GGUF block   d f16 | 32 signed bytes
packed       d f16 x 16 rows | 8 vectors of signed bytes
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    Bytes,
    Format,
    Header,
    Scales,
    emit_bytes_as_codes,
    emit_halves,
    interleave,
    no_header,
    per_row,
)
from kernels_cpu.simd import Builder, ir


def _pack(v: Bytes) -> Bytes:
    qs = interleave(v[..., 2:])
    return np.concatenate([per_row(v[..., :2]), qs.reshape(*qs.shape[:2], 512)], axis=-1)


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    return Scales((emit_halves(b, p),))


FORMAT = Format(
    name="Q8_0",
    type_id=8,
    block_columns=32,
    block_bytes=34,
    header_bytes=0,
    sub_bytes=544,
    max_code=255,
    zero_point=128,
    pack=_pack,
    emit_header=no_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: emit_bytes_as_codes(b, p, 32),
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

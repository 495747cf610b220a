"""Q5_0: 32 columns in 22 bytes; value = d·(code - 16).

GGUF block   d f16 | qh u32: bit i is the fifth bit of column i | 16 bytes of nibbles as in Q4_0
packed       d f16 x 16 rows | plane of fifth bits, 64 bytes: bit k for code vector k | 4 nibble vectors
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
    emit_halves,
    emit_nibbles,
    emit_plane,
    interleave,
    no_header,
    pack_bits,
    per_row,
)
from kernels_cpu.simd import V_I8X64, Builder, emit_load, ir


def emit_five_bits(b: Builder, p: ir.Value, plane_at: int, nibbles_at: int) -> Iterator[tuple[int, ir.Value]]:
    """Code vectors of a plane of fifth bits and 4 nibble vectors."""
    plane = emit_load(b, V_I8X64, p, plane_at)
    for k, nibbles in emit_nibbles(b, p, nibbles_at):
        yield k, b.or_(nibbles, emit_plane(b, plane, k, 1, 4))


def _pack(v: Bytes) -> Bytes:
    fifth, qs = pack_bits(v[..., 2:6])[:, :, 0], interleave(v[..., 6:])
    return np.concatenate([per_row(v[..., :2]), fifth, qs.reshape(*qs.shape[:2], 256)], axis=-1)


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    return Scales((emit_halves(b, p),))


FORMAT = Format(
    name="Q5_0",
    type_id=6,
    block_columns=32,
    block_bytes=22,
    header_bytes=0,
    sub_bytes=352,
    max_code=31,
    zero_point=16,
    pack=_pack,
    emit_header=no_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: emit_five_bits(b, p, 32, 96),
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

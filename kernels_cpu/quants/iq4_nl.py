"""IQ4_NL: 32 columns in 18 bytes; value = d·VALUES[code].

GGUF block   d f16 | 16 bytes of nibbles as in Q4_0
packed       d f16 x 16 rows | 4 nibble vectors
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
    emit_halves,
    emit_nibbles,
    interleave,
    no_header,
    per_row,
)
from kernels_cpu.simd import Builder, emit_lookup, ir

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

# Biased so that they are unsigned: the zero point takes it away again.
BIAS = 128
TABLE = tuple(v + BIAS for v in VALUES)


def emit_nibbles_of_table(
    b: Builder, addr: ir.Value, offset: int, table: Sequence[int]
) -> Iterator[tuple[int, ir.Value]]:
    """The code vectors of 4 nibble vectors at `addr + offset`, each nibble looked up in a table of 16."""
    for k, nibbles in emit_nibbles(b, addr, offset):
        yield k, emit_lookup(b, nibbles, table)


def _pack(v: Bytes) -> Bytes:
    qs = interleave(v[..., 2:])
    return np.concatenate([per_row(v[..., :2]), qs.reshape(*qs.shape[:2], 256)], axis=-1)


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    return Scales((emit_halves(b, p),))


FORMAT = Format(
    name="IQ4_NL",
    type_id=20,
    block_columns=32,
    block_bytes=18,
    header_bytes=0,
    sub_bytes=288,
    max_code=max(TABLE),
    zero_point=BIAS,
    pack=_pack,
    emit_header=no_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: emit_nibbles_of_table(b, p, 32, TABLE),
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)

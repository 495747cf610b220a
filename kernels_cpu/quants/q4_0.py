"""Q4_0: 32 columns in 18 bytes; value = d·(code - 8).

GGUF block   d f16 | 16 bytes: column j in the low, j + 16 in the high nibble of byte j
packed       d f16 x 16 rows | 4 nibble vectors
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.compile import kernel
from kernels_cpu.linear import make_row_reader, make_tiles, run_embedding, run_linear
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
    qs = interleave(v[..., 2:])
    return np.concatenate([per_row(v[..., :2]), qs.reshape(*qs.shape[:2], 256)], axis=-1)


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    return Scales((emit_halves(b, p),))


FORMAT = Format(
    name="Q4_0",
    type_id=2,
    block_columns=32,
    block_bytes=18,
    header_bytes=0,
    sub_bytes=288,
    max_code=15,
    zero_point=8,
    pack=_pack,
    emit_header=no_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: emit_nibbles(b, p, 32),
)

tile_1, tile_2, tile_n = make_tiles(FORMAT)
tile16_1, tile16_2, tile16_n = make_tiles(FORMAT, bits=16)
read_row = make_row_reader(FORMAT)


@kernel
def linear(row: int, thread: int, n_threads: int) -> None:
    """Product with a Q4_0 matrix: see kernels_cpu.linear."""
    run_linear(row, thread, n_threads, tile_1, tile_2, tile_n)


@kernel
def linear_16(row: int, thread: int, n_threads: int) -> None:
    """Product with a Q4_0 matrix, activations of 16 bits: see kernels_cpu.linear."""
    run_linear(row, thread, n_threads, tile16_1, tile16_2, tile16_n)


@kernel
def embedding(row: int, thread: int, n_threads: int) -> None:
    """Rows of a Q4_0 matrix: see kernels_cpu.linear."""
    run_embedding(row, thread, n_threads, read_row)

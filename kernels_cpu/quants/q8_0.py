"""Q8_0: 32 columns in 34 bytes; value = d·q.

GGUF block   d f16 | 32 signed bytes
packed       d f16 x 16 rows | 8 vectors of signed bytes
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

tile_1, tile_2, tile_n = make_tiles(FORMAT)
tile16_1, tile16_2, tile16_n = make_tiles(FORMAT, bits=16)
read_row = make_row_reader(FORMAT)


@kernel
def linear(row: int, thread: int, n_threads: int) -> None:
    """Product with a Q8_0 matrix: see kernels_cpu.linear."""
    run_linear(row, thread, n_threads, tile_1, tile_2, tile_n)


@kernel
def linear_16(row: int, thread: int, n_threads: int) -> None:
    """Product with a Q8_0 matrix, activations of 16 bits: see kernels_cpu.linear."""
    run_linear(row, thread, n_threads, tile16_1, tile16_2, tile16_n)


@kernel
def embedding(row: int, thread: int, n_threads: int) -> None:
    """Rows of a Q8_0 matrix: see kernels_cpu.linear."""
    run_embedding(row, thread, n_threads, read_row)

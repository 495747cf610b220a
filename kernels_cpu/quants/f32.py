"""F32: The GGUF bytes as they are."""

from __future__ import annotations

from kernels_cpu.compile import kernel
from kernels_cpu.linear import make_row_reader, make_tiles, run_embedding, run_linear
from kernels_cpu.quants.floats import FloatFormat
from kernels_cpu.simd import V_F32X16, Builder, emit_load, ir


def _column(b: Builder, p: ir.Value, k: int) -> ir.Value:
    return emit_load(b, V_F32X16, p, 64 * k)


FORMAT = FloatFormat(name="F32", type_id=0, element_bytes=4, emit_column=_column)

tile_1, tile_2, tile_n = make_tiles(FORMAT)
read_row = make_row_reader(FORMAT)


@kernel
def linear(row: int, thread: int, n_threads: int) -> None:
    """Product with a F32 matrix: see kernels_cpu.linear."""
    run_linear(row, thread, n_threads, tile_1, tile_2, tile_n)


@kernel
def embedding(row: int, thread: int, n_threads: int) -> None:
    """Rows of a F32 matrix: see kernels_cpu.linear."""
    run_embedding(row, thread, n_threads, read_row)

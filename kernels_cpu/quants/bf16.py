"""BF16: The upper halves of float32."""

from __future__ import annotations

from kernels_cpu.compile import kernel
from kernels_cpu.linear import make_row_reader, make_tiles, run_embedding, run_linear
from kernels_cpu.quants.floats import FloatFormat
from kernels_cpu.simd import I16, V_F32X16, V_I32X16, Builder, const, emit_load, ir


def _column(b: Builder, p: ir.Value, k: int) -> ir.Value:
    return b.bitcast(
        b.shl(b.zext(emit_load(b, ir.VectorType(I16, 16), p, 32 * k), V_I32X16), const(V_I32X16, 16)), V_F32X16
    )


FORMAT = FloatFormat(name="BF16", type_id=30, element_bytes=2, emit_column=_column)

tile_1, tile_2, tile_n = make_tiles(FORMAT)
read_row = make_row_reader(FORMAT)


@kernel
def linear(row: int, thread: int, n_threads: int) -> None:
    """Product with a BF16 matrix: see kernels_cpu.linear."""
    run_linear(row, thread, n_threads, tile_1, tile_2, tile_n)


@kernel
def embedding(row: int, thread: int, n_threads: int) -> None:
    """Rows of a BF16 matrix: see kernels_cpu.linear."""
    run_embedding(row, thread, n_threads, read_row)

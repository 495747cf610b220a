"""How rows become blocks, for any type: 16 rows at a time, block after block; a type says what becomes of a block."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from kernels_cpu.compile import Routine
from kernels_cpu.quantize.blocks import BLOCKS
from kernels_cpu.quantize.lanes import F16_ROWS, F32_ROWS, LANES, ROW, each, read_bf16, read_f16, read_f32
from kernels_cpu.quantize.scratch import LARGEST, LARGEST_HALF, MEAN_SQUARE, X, write_block
from kernels_cpu.simd import f32x16, i32x16, ld_i64, load, store, vmax, zero
from kernels_cpu.subroutine import subroutine

JOB = ("values", "stride", "kind", "n_cols", "importance", "out", "out_stride", "n_groups", "scratch", "seen")
"""The words of a job, int64: address, bytes between rows and kind of the rows, columns, address of float32 [n_cols] or
0, address of the blocks and bytes between their rows, groups of 16 rows, address of SCRATCH_BYTES, and of what was
seen: int32 [n_groups][2][16], the bits of each row's largest magnitude and of the largest half written for it."""

SIGNATURE = "void(int64)"


@subroutine()
def read_columns(s: int, at: int, stride: int, kind: int, n: int) -> None:
    """`n` columns, a multiple of 16, of 16 rows to X."""
    largest = load(i32x16, s + LARGEST)
    for i in range(n // 16):
        to = s + X + 16 * ROW * i
        if kind == F32_ROWS:
            seen = read_f32(at + 64 * i, stride, to)
        elif kind == F16_ROWS:
            seen = read_f16(at + 32 * i, stride, to)
        else:
            seen = read_bf16(at + 32 * i, stride, to)
        largest = vmax(seen, largest)
    store(s + LARGEST, largest)


@subroutine()
def square_rows(s: int, at: int, stride: int, kind: int, n_cols: int) -> None:
    """The mean square of 16 rows to MEAN_SQUARE."""
    width = 4 if kind == F32_ROWS else 2
    total = each(0.0)
    for i in range(n_cols // 32):
        read_columns(s, at + 32 * width * i, stride, kind, 32)
        for column in range(32):
            v = load(f32x16, s + X + ROW * column)
            total = total + v * v
    store(s + MEAN_SQUARE, total / each(n_cols))


# What the function below uses: each type has a copy of it with globals of its own.
encode: Any = None
columns = block_bytes = 0
wants_square = False


def _quantize(job: int) -> None:
    values, stride, kind, n_cols = ld_i64(job), ld_i64(job + 8), ld_i64(job + 16), ld_i64(job + 24)
    importance, out, out_stride = ld_i64(job + 32), ld_i64(job + 40), ld_i64(job + 48)
    n_groups, s, seen = ld_i64(job + 56), ld_i64(job + 64), ld_i64(job + 72)
    width = 4 if kind == F32_ROWS else 2
    for group in range(n_groups):
        at, to = values + 16 * stride * group, out + 16 * out_stride * group
        store(s + LARGEST, zero(i32x16))
        store(s + LARGEST_HALF, zero(i32x16))
        if wants_square:
            square_rows(s, at, stride, kind, n_cols)
        for block in range(n_cols // columns):
            read_columns(s, at + width * columns * block, stride, kind, columns)
            encode(s, importance + 4 * columns * block)
            write_block(s, block_bytes, to + block_bytes * block, out_stride)
        store(seen + 128 * group, load(i32x16, s + LARGEST))
        store(seen + 128 * group + 64, load(i32x16, s + LARGEST_HALF))


def quantizer(
    module: str, name: str, type_name: str, encode: Callable[[int, int], None], wants_square: bool = False
) -> Routine:
    """The routine called `name` in `module`, which quantises rows to a type.

    `encode` is a subroutine (scratch, address of the importance of the block's columns) that makes 16 blocks of the
    values at X; where the type has no blocks, they are of 16 columns. `wants_square`: it reads MEAN_SQUARE.
    """
    block = BLOCKS[type_name]
    if block.columns == 1:
        block = block._replace(columns=LANES, n_bytes=LANES * block.n_bytes)
    used = {"encode": encode, "wants_square": wants_square, "columns": block.columns, "block_bytes": block.n_bytes}
    # Numba reads globals as constants, and its disk cache wants functions of a module and not closures.
    copy = FunctionType(_quantize.__code__, _quantize.__globals__ | used, name)
    copy.__module__, copy.__doc__ = module, f"Rows to {type_name}."
    copy.__qualname__ = f"{module.rpartition('.')[2]}_{name}"
    return Routine(copy, SIGNATURE, 8)

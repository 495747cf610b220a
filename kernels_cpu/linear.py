"""Products of activations with interleaved weight matrices, for any quant format; one kernel serves 1 row or 512.

How a tile of a product is computed, and in which order, is said in kernels_cpu.tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from llvmlite import ir
from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels_cpu.compile import Kernel
from kernels_cpu.ops import arg, copy_of, run_of_rows, share, specialised
from kernels_cpu.ops.quantize import record_bytes
from kernels_cpu.quants.floats import FloatFormat
from kernels_cpu.quants.format import Format
from kernels_cpu.simd import (
    F32,
    I32,
    I64,
    V_F32X16,
    Builder,
    const,
    emit_splat,
    emit_store,
    larger,
    ld_i32,
    ld_i64,
    smaller,
)
from kernels_cpu.tiles import MAX_PANEL_BYTES, PANEL_ROWS, TILE_ROWS, Tiles, make_tiles

CHUNK_ROWS = 96
"""Activation rows worked on at a time: their columns stay in the second-level cache while weights pass by."""

UNITS_AT_ONCE = 4
"""Units of two groups that read the same activations before the next columns are taken."""

SCRATCH_BYTES = MAX_PANEL_BYTES + 2 * UNITS_AT_ONCE * CHUNK_ROWS * 64
"""Memory that a thread needs for a product: a panel, and the sums of as many weight rows with the rows of a chunk."""


def act_row_bytes(n_cols: int, bits: int) -> int:
    """Bytes of a row of quantised activations of `n_cols` columns of 8 or 16 bits."""
    return -(-n_cols // 32) * record_bytes(bits)


@intrinsic
def clear(tyctx, sums, n):  # type: ignore[no-untyped-def]
    """Set float32 [n][16] at `sums` to 0."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        with cgutils.for_range(b, a[1]) as i:
            emit_store(b, const(V_F32X16, 0.0), b.add(a[0], b.mul(i.index, const(I64, 64))))
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), gen


# What the two kernels below use: each type has copies of them with globals of their own.
tile_1: Any
tile_2: Any
tile_n: Any
tile_panel: Any
unpack: Any
read_row: Any
tile_1 = tile_2 = tile_n = tile_panel = unpack = read_row = None
panel_rows = blocks = sub_blocks = block_bytes = x_bytes = 0


def _product(row: int, thread: int, n_threads: int) -> None:
    """Product with a matrix. Arguments:

    count, x, x_stride, w, out, out_stride, n_blocks, group_bytes, n_groups, bias, residual, x_own, residual_own,
    units_before, units_after, scratch (SCRATCH_BYTES for each thread).

    `x` are quantised activations (for float weights: f32 rows). n_groups is even: a thread takes whole units
    of 32 output columns, so that what follows can work on the same columns without waiting. The units of products
    that follow one another are shared out as one list, of which `units_before` and `units_after` belong to the
    others. `residual`, when not 0, has the stride of `out` and may be `out` itself if it has no own copies.
    Accumulates in f32, in the order of the module's text.
    """
    n = ld_i64(arg(row, 0))
    x, x_stride, w = copy_of(thread, arg(row, 1), arg(row, 11), n), arg(row, 2), arg(row, 3)
    out, out_stride, n_blocks = arg(row, 4), arg(row, 5), arg(row, 6)
    group_bytes, bias, residual = arg(row, 7), arg(row, 9), copy_of(thread, arg(row, 10), arg(row, 12), n)
    before, n_units = arg(row, 13), arg(row, 8) // 2
    in_all = before + n_units + arg(row, 14)
    first_unit = smaller(larger(share(in_all, thread, n_threads) - before, 0), n_units)
    end_unit = smaller(larger(share(in_all, thread + 1, n_threads) - before, 0), n_units)
    panel = arg(row, 15) + SCRATCH_BYTES * thread
    for first in range(0, n, CHUNK_ROWS):
        last = smaller(n, first + CHUNK_ROWS)
        whole, is_unpacked = first + (last - first) // TILE_ROWS * TILE_ROWS, last - first >= panel_rows
        for from_unit in range(first_unit, end_unit if first < whole else first_unit, UNITS_AT_ONCE):
            to_unit = smaller(end_unit, from_unit + UNITS_AT_ONCE)
            clear(panel + MAX_PANEL_BYTES, 2 * UNITS_AT_ONCE * CHUNK_ROWS)
            # Weights that few rows wait for are best read from end to end.
            step = blocks if last - first >= PANEL_ROWS else n_blocks
            for k in range(0, n_blocks, step):
                n_now, more = smaller(step, n_blocks - k), int64(n_blocks > k + step)
                for g in range(2 * from_unit, 2 * to_unit):
                    wk, xk = w + g * group_bytes + k * block_bytes, x + k * x_bytes
                    sums = panel + MAX_PANEL_BYTES + (g - 2 * from_unit) * CHUNK_ROWS * 64
                    bg, n_sub = bias + g * 64 if bias != 0 else 0, n_now * sub_blocks
                    if is_unpacked:
                        unpack(wk, n_now, panel)
                    for t in range(first, whole, TILE_ROWS):
                        to, xt, st = out + g * 64 + t * out_stride, xk + t * x_stride, sums + 64 * (t - first)
                        rt = residual + g * 64 + t * out_stride if residual != 0 else 0
                        if is_unpacked:
                            tile_panel(panel, xt, x_stride, n_sub, st, more, to, out_stride, bg, rt)
                        else:
                            tile_n(wk, xt, x_stride, n_now, st, more, to, out_stride, bg, rt)
        # Two streams of weights, each of which goes on without a gap: the first half of the thread's groups, and the
        # second. Where a row is short, its end comes too soon for the CPU to have seen a stream.
        apart = end_unit - first_unit
        for g in range(2 * first_unit, 2 * first_unit + (apart if whole < last else 0)):
            wg, bg = w + g * group_bytes, bias + g * 64 if bias != 0 else 0
            t = whole
            while t < last:
                rt = residual + g * 64 + t * out_stride if residual != 0 else 0
                xt, to = x + t * x_stride, out + g * 64 + t * out_stride
                if t + 1 < last:
                    tile_2(wg, xt, x_stride, n_blocks, to, out_stride, bg, rt, apart)
                    t += 2
                else:
                    tile_1(wg, xt, x_stride, n_blocks, to, out_stride, bg, rt, apart)
                    t += 1


# --------------------------------------------------------------------------- rows of a matrix


def _emit_sub_block_of_row(
    b: Builder, fmt: Format, p: ir.Value, header: Any, lane: ir.Value, out: ir.Value, spill: ir.Value
) -> None:
    """Write the 32 values of one row of a sub-block: code·scale + minimum, each rounded as in the reference."""
    scaling = fmt.emit_scales(b, p, header)
    n_parts = len(scaling.scales)
    scales = [b.extract_element(s, lane) for s in scaling.scales]
    v4f, v4i = ir.VectorType(F32, 4), ir.VectorType(I32, 4)
    for k, codes in fmt.emit_codes(b, p):
        b.store(codes, b.bitcast(spill, codes.type.as_pointer()), align=1)
        word = b.load(b.gep(b.bitcast(spill, I32.as_pointer()), [lane]), align=1)
        four = b.bitcast(word, ir.VectorType(ir.IntType(8), 4))
        q = b.sub(b.zext(four, v4i), const(v4i, fmt.zero_point))
        value = b.fmul(b.sitofp(q, v4f), emit_splat(b, v4f, scales[k * n_parts // 8]))
        minimum = scaling.half_minimums[k // 4] if scaling.half_minimums else scaling.minimum
        if minimum is not None:
            value = b.fadd(value, emit_splat(b, v4f, b.extract_element(minimum, lane)))
        emit_store(b, value, out, 16 * k)


def _emit_quant_row(b: Builder, fmt: Format, w: ir.Value, lane: ir.Value, n_blocks: ir.Value, out: ir.Value) -> None:
    spill = cgutils.alloca_once(b, ir.ArrayType(ir.IntType(8), 64))
    with cgutils.for_range(b, n_blocks) as block:
        p = b.add(w, b.mul(block.index, const(I64, fmt.packed_block_bytes)))
        header = fmt.emit_header(b, p)
        with cgutils.for_range(b, const(I64, fmt.n_sub)) as sub:
            q = b.add(p, b.add(const(I64, fmt.header_bytes), b.mul(sub.index, const(I64, fmt.sub_bytes))))
            i = b.add(b.mul(block.index, const(I64, fmt.n_sub)), sub.index)
            _emit_sub_block_of_row(b, fmt, q, header, lane, b.add(out, b.mul(i, const(I64, 128))), spill)


def _emit_float_row(
    b: Builder, fmt: FloatFormat, w: ir.Value, lane: ir.Value, n_blocks: ir.Value, out: ir.Value
) -> None:
    with cgutils.for_range(b, b.mul(n_blocks, const(I64, 32))) as k:
        p = b.add(w, b.mul(k.index, const(I64, fmt.packed_block_bytes // 32)))
        value = b.extract_element(fmt.emit_column(b, p, 0), lane)
        emit_store(b, value, b.add(out, b.mul(k.index, const(I64, 4))))


def _rows(row: int, thread: int, n_threads: int) -> None:
    """Rows of a matrix, as float32. Arguments: count, ids (int32), w, n_blocks, group_bytes, out, out_stride, own.

    Splits the rows of the step.
    """
    n = ld_i64(arg(row, 0))
    ids, w, n_blocks, group_bytes = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4)
    out = copy_of(thread, arg(row, 5), arg(row, 7), n)
    first, end = run_of_rows(thread, n_threads, n, arg(row, 7))
    for i in range(first, end):
        r = int64(ld_i32(ids + 4 * i))
        read_row(w + r // 16 * group_bytes, r % 16, n_blocks, out + i * arg(row, 6))


def make_row_reader(fmt: Format | FloatFormat) -> Any:
    """Intrinsic (group, lane, n_blocks, out): row `lane` of the 16 at address `group`, dequantised to f32 at `out`."""
    emit: Callable[..., None] = _emit_quant_row if isinstance(fmt, Format) else _emit_float_row

    @intrinsic
    def read_row(tyctx, group, lane, n_blocks, out):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            group, lane, n_blocks, out = a
            emit(b, fmt, group, b.trunc(lane, I32), n_blocks, out)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 4), gen

    return read_row


# ------------------------------------------------------------------- the kernels of a type


def _product_kernel(module: str, name: str, tiles: Tiles) -> Kernel:
    used = {field.name: getattr(tiles, field.name) for field in fields(tiles)}
    return specialised(_product, module, name, cost=4, **used)


def product_kernels(fmt: Format | FloatFormat, module: str) -> tuple[Kernel, Kernel, Kernel]:
    """Kernels called `linear`, `linear_16` (activations of 16 bits; float types: the same again) and `embedding`.

    `module` is the name of the module that binds them to these names.
    """
    linear = _product_kernel(module, "linear", make_tiles(fmt, 8))
    linear_16 = linear if isinstance(fmt, FloatFormat) else _product_kernel(module, "linear_16", make_tiles(fmt, 16))
    return linear, linear_16, specialised(_rows, module, "embedding", read_row=make_row_reader(fmt))

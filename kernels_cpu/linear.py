"""Products of activations with interleaved weight matrices, for any quant format; one kernel serves 1 row or 512.

A *tile* is one or two groups of 16 weight rows by T activation rows over all columns. Whatever its shape, an output
element is computed by the same operations in the same order, so a result does not depend on the batch:

    per sub-block of 32 columns    i = sum(code·x) - zero_point·sum(x)        exact, in int32
      or half of one that has      acc = fma(float(i), scale·d_x, acc)
      a scale of its own           acc = fma(minimum, d_x·sum(x), acc)        (types that have one)
    float weights, per 32 columns  p = w0·x0; p = fma(wk, xk, p); acc = acc + p
    at the end                     y = acc (+ bias) (+ residual)

Activations have 8 bits, or 16 where precision is worth the second multiply-add. Their rows are the records that
kernels_cpu.ops.quantize writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

from llvmlite import ir
from numba import int64, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels_cpu.compile import Kernel
from kernels_cpu.ops import arg, copy_of, run_of_rows, share
from kernels_cpu.ops.quantize import HALF_LANES, HALVES, ISUM, LANES, D, S, record_bytes
from kernels_cpu.quants.floats import FloatFormat
from kernels_cpu.quants.format import Format, Header
from kernels_cpu.simd import (
    AVX512,
    F32,
    I32,
    I64,
    V_F32X16,
    V_I16X32,
    V_I32X16,
    BlockDot,
    BlockDot16,
    Builder,
    XSums,
    const,
    emit_broadcast4,
    emit_fma,
    emit_load,
    emit_splat,
    emit_store,
    larger,
    ld_i32,
    ld_i64,
    smaller,
)

TILE_ROWS = 8 if AVX512 else 4
"""Activation rows of the largest tile: its sums of 16 lanes must fit the registers."""


class TileShape(NamedTuple):
    """Groups of 16 weight rows by activation rows."""

    groups: int
    rows: int


TILE_SHAPES = TileShape(2, 1), TileShape(2, 2), TileShape(1, TILE_ROWS)
"""What products are made of. With one or two rows they wait for memory, which two streams get more of than one."""

CHUNK_BYTES = 192 * 1024
"""Activations to work on at a time: they stay in the second-level cache while all weight rows pass by."""


def act_row_bytes(n_cols: int, bits: int) -> int:
    """Bytes of a row of quantised activations of `n_cols` columns of 8 or 16 bits."""
    return -(-n_cols // 32) * record_bytes(bits)


def _broadcast(b: Builder, lty: ir.Type, addr: ir.Value, offset: int = 0) -> ir.Value:
    """The 4-byte value at `addr + offset` in 16 lanes."""
    return emit_splat(b, V_I32X16 if lty == I32 else V_F32X16, emit_load(b, lty, addr, offset))


@dataclass(frozen=True)
class _Record:
    """A block of one activation row: the address of its integers and that of the words behind them."""

    b: Builder
    x: ir.Value
    words: ir.Value

    def word(self, lty: ir.Type, offset: int) -> ir.Value:
        """The 4-byte word at `offset` as a vector with one value in every lane."""
        return _broadcast(self.b, lty, self.words, offset)

    def sums(self, part: int, n_parts: int) -> XSums:
        """Sums over all 32 columns, or one of two halves."""
        total, lanes = (ISUM, LANES) if n_parts == 1 else (HALVES + 4 * part, HALF_LANES + 4 * part)
        return XSums(
            lambda: self.word(I32, total), lambda: self.b.bitcast(emit_broadcast4(self.b, self.words, lanes), V_I16X32)
        )


@dataclass(frozen=True)
class _Place:
    """A sub-block of a group of weight rows: its address, and what the header in front of its block holds."""

    address: ir.Value
    header: Header


Accumulators = list[list[ir.Value]]
"""Addresses of <16 x f32> by activation row and group of weight rows."""


@dataclass(frozen=True)
class _Products:
    """How a quantised tile multiplies: the format of the weights and the bits of the activations."""

    fmt: Format
    bits: int

    def record(self, b: Builder, row: ir.Value, i: ir.Value) -> _Record:
        """Block i of the activation row at address `row`."""
        x = b.add(row, b.mul(i, const(I64, record_bytes(self.bits))))
        return _Record(b, x, b.add(x, const(I64, 4 * self.bits)))

    @property
    def n_parts(self) -> int:
        """Runs of columns of a sub-block that have a scale of their own: 1, or 2 halves."""
        return self.fmt.n_scales

    def dot(self, b: Builder, record: _Record, part: int) -> BlockDot | BlockDot16:
        fmt, sums = self.fmt, record.sums(part, self.n_parts)
        if self.bits == 16:
            return BlockDot16(b, fmt.zero_point, sums)
        return BlockDot(b, fmt.max_code, fmt.zero_point, 8 // self.n_parts, sums)

    def columns(self, b: Builder, record: _Record, k: int) -> list[ir.Value]:
        """Activations of columns 4k .. 4k + 3, repeated for each weight row, as a dot product takes them."""
        n = self.bits // 8
        return [emit_broadcast4(b, record.x, 4 * n * k + 4 * i) for i in range(n)]

    def accumulate(self, b: Builder, places: list[_Place], records: list[_Record], accs: Accumulators) -> None:
        """Add a sub-block of each group of weight rows, at `places`, to the accumulators [row][group].

        What a part needs is emitted together, its scales last: LLVM keeps this order, and few registers are in use.
        """
        dots: list[list[list[BlockDot | BlockDot16]]] = [[] for _ in range(self.n_parts)]
        n_left = [8 // self.n_parts] * self.n_parts
        for steps in zip(*(self.fmt.emit_codes(b, place.address) for place in places), strict=True):
            k = steps[0][0]
            part = k * self.n_parts // 8
            dots[part] = dots[part] or [[self.dot(b, record, part) for _ in places] for record in records]
            for record, row_dots in zip(records, dots[part], strict=True):
                columns = self.columns(b, record, k)
                for dot, (_, codes) in zip(row_dots, steps, strict=True):
                    dot.step(codes, *columns)
            n_left[part] -= 1
            if not n_left[part]:
                self.add_part(b, part, places, records, dots[part], accs)

    def add_part(
        self,
        b: Builder,
        part: int,
        places: list[_Place],
        records: list[_Record],
        dots: list[list[BlockDot | BlockDot16]],
        accs: Accumulators,
    ) -> None:
        """Add the scaled sums of a part, and its minimum."""
        for g, place in enumerate(places):
            scaling = self.fmt.emit_scales(b, place.address, place.header)
            for record, row_dots, row_accs in zip(records, dots, accs, strict=True):
                d = record.word(F32, D)
                value = b.sitofp(row_dots[g].finish(), V_F32X16)
                value = emit_fma(b, value, b.fmul(scaling.scales[part], d), b.load(row_accs[g]))
                if scaling.half_minimums:
                    sums = b.fmul(d, b.sitofp(record.word(I32, HALVES + 4 * part), V_F32X16))
                    value = emit_fma(b, scaling.half_minimums[part], sums, value)
                elif scaling.minimum is not None and part == self.n_parts - 1:
                    value = emit_fma(b, scaling.minimum, record.word(F32, S), value)
                b.store(value, row_accs[g])


def _zeros(b: Builder, shape: TileShape) -> Accumulators:
    return [
        [cgutils.alloca_once_value(b, const(V_F32X16, 0.0)) for _ in range(shape.groups)] for _ in range(shape.rows)
    ]


@dataclass(frozen=True)
class _Operands:
    """What a tile reads: addresses and sizes."""

    w: ir.Value
    x: ir.Value
    x_stride: ir.Value
    n_blocks: ir.Value

    def rows(self, b: Builder, shape: TileShape) -> list[ir.Value]:
        """The addresses of the activation rows."""
        return [b.add(self.x, b.mul(self.x_stride, const(I64, k))) for k in range(shape.rows)]

    def groups(self, b: Builder, shape: TileShape, block_bytes: int) -> list[ir.Value]:
        """The addresses of the groups of weight rows."""
        group_bytes = b.mul(self.n_blocks, const(I64, block_bytes))
        return [b.add(self.w, b.mul(group_bytes, const(I64, g))) for g in range(shape.groups)]


def _emit_quant_tile(b: Builder, fmt: Format, bits: int, shape: TileShape, operands: _Operands) -> Accumulators:
    rows, groups = operands.rows(b, shape), operands.groups(b, shape, fmt.packed_block_bytes)
    accs, products = _zeros(b, shape), _Products(fmt, bits)

    def sub_block(places: list[_Place], i: ir.Value) -> None:
        products.accumulate(b, places, [products.record(b, row, i) for row in rows], accs)

    with cgutils.for_range(b, operands.n_blocks) as block:
        offset = b.mul(block.index, const(I64, fmt.packed_block_bytes))
        blocks = [b.add(group, offset) for group in groups]
        headers = [fmt.emit_header(b, p) for p in blocks]
        if fmt.n_sub == 1:
            sub_block([_Place(p, h) for p, h in zip(blocks, headers, strict=True)], block.index)
        else:
            with cgutils.for_range(b, const(I64, fmt.n_sub)) as sub:
                within = b.add(const(I64, fmt.header_bytes), b.mul(sub.index, const(I64, fmt.sub_bytes)))
                places = [_Place(b.add(p, within), h) for p, h in zip(blocks, headers, strict=True)]
                sub_block(places, b.add(b.mul(block.index, const(I64, fmt.n_sub)), sub.index))
    return accs


def _emit_float_tile(b: Builder, fmt: FloatFormat, bits: int, shape: TileShape, operands: _Operands) -> Accumulators:
    rows, groups = operands.rows(b, shape), operands.groups(b, shape, fmt.packed_block_bytes)
    accs = _zeros(b, shape)
    with cgutils.for_range(b, operands.n_blocks) as block:
        offset = b.mul(block.index, const(I64, fmt.packed_block_bytes))
        blocks, xs = [b.add(p, offset) for p in groups], [b.add(x, b.mul(block.index, const(I64, 128))) for x in rows]
        partials: list[list[ir.Value]] = []
        for k in range(32):
            weights = [fmt.emit_column(b, p, k) for p in blocks]
            columns = [_broadcast(b, F32, x, 4 * k) for x in xs]
            if k == 0:
                partials = [[b.fmul(w, v) for w in weights] for v in columns]
            else:
                partials = [
                    [emit_fma(b, w, v, p) for w, p in zip(weights, row, strict=True)]
                    for v, row in zip(columns, partials, strict=True)
                ]
        for row_accs, row in zip(accs, partials, strict=True):
            for acc, value in zip(row_accs, row, strict=True):
                b.store(b.fadd(b.load(acc), value), acc)
    return accs


def _emit_result(b: Builder, acc: ir.Value, out: ir.Value, bias: ir.Value, residual: ir.Value) -> None:
    """Store acc + bias + residual; an address of 0 means that there is none."""
    value = cgutils.alloca_once(b, V_F32X16)
    b.store(acc, value)
    for addend in (bias, residual):
        with b.if_then(b.icmp_unsigned("!=", addend, const(I64, 0))):
            b.store(b.fadd(b.load(value), emit_load(b, V_F32X16, addend)), value)
    emit_store(b, b.load(value), out)


def _make_tile(fmt: Format | FloatFormat, bits: int, shape: TileShape) -> Any:
    emit: Callable[..., Accumulators] = _emit_quant_tile if isinstance(fmt, Format) else _emit_float_tile

    @intrinsic
    def tile(tyctx, w, x, x_stride, n_blocks, out, out_stride, bias, residual):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            out, out_stride, bias, residual = a[4:]
            has_bias, has_residual = (b.icmp_unsigned("!=", p, const(I64, 0)) for p in (bias, residual))
            for k, row_accs in enumerate(emit(b, fmt, bits, shape, _Operands(*a[:4]))):
                for g, acc in enumerate(row_accs):
                    offset = b.add(b.mul(out_stride, const(I64, k)), const(I64, 64 * g))
                    at_bias = b.select(has_bias, b.add(bias, const(I64, 64 * g)), bias)
                    at_residual = b.select(has_residual, b.add(residual, offset), residual)
                    _emit_result(b, b.load(acc), b.add(out, offset), at_bias, at_residual)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 8), gen

    return tile


def make_tiles(fmt: Format | FloatFormat, bits: int = 8) -> tuple[Any, ...]:
    """Intrinsics (w, x, x_stride, n_blocks, out, out_stride, bias, residual), one for each of TILE_SHAPES.

    `bits` is the width of quantised activations; float weights take them as float32.
    """
    return tuple(_make_tile(fmt, bits, shape) for shape in TILE_SHAPES)


@njit(inline="always")
def _first_unit(row: int, thread: int, n_threads: int) -> int:
    """Where the share of `thread` of the units of 32 output columns begins; that of `n_threads` is the end."""
    before, n_units = arg(row, 13), arg(row, 8) // 2
    start = share(before + n_units + arg(row, 14), thread, n_threads) - before
    return smaller(larger(start, 0), n_units)


@njit(inline="always")
def run_linear(row, thread, n_threads, tile_1, tile_2, tile_n):  # type: ignore[no-untyped-def]
    """A kernel's body. Arguments of the row:

    count, x, x_stride, w, out, out_stride, n_blocks, group_bytes, n_groups, bias, residual, x_own, residual_own,
    units_before, units_after.

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
    first_unit, end_unit = _first_unit(row, thread, n_threads), _first_unit(row, thread + 1, n_threads)
    chunk = max(64, CHUNK_BYTES // x_stride // 8 * 8)
    for first in range(0, n, chunk):
        last = min(n, first + chunk)
        whole = first + (last - first) // TILE_ROWS * TILE_ROWS
        for unit in range(first_unit, end_unit):
            for g in range(2 * unit, 2 * unit + 2):
                bg = bias + g * 64 if bias != 0 else 0
                for t in range(first, whole, TILE_ROWS):
                    rt = residual + g * 64 + t * out_stride if residual != 0 else 0
                    to = out + g * 64 + t * out_stride
                    tile_n(w + g * group_bytes, x + t * x_stride, x_stride, n_blocks, to, out_stride, bg, rt)
            wu, bu = w + 2 * unit * group_bytes, bias + unit * 128 if bias != 0 else 0
            t = whole
            while t < last:
                rt = residual + unit * 128 + t * out_stride if residual != 0 else 0
                xt, to = x + t * x_stride, out + unit * 128 + t * out_stride
                if t + 1 < last:
                    tile_2(wu, xt, x_stride, n_blocks, to, out_stride, bu, rt)
                    t += 2
                else:
                    tile_1(wu, xt, x_stride, n_blocks, to, out_stride, bu, rt)
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


@njit(inline="always")
def run_embedding(row, thread, n_threads, read_row):  # type: ignore[no-untyped-def]
    """A kernel's body. Arguments of the row:

    count, ids, w, n_blocks, group_bytes, out, out_stride, own.

    Writes the rows `ids` (int32) of the matrix as float32; splits the rows of the step.
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

# What `_product` and `_rows` call: each type's kernels are copies of these two functions with globals of their own,
# since Numba reads globals as constants, and its disk cache wants functions and not closures.
tile_1 = tile_2 = tile_n = read_row = None


def _product(row: int, thread: int, n_threads: int) -> None:
    """Product with a matrix of one type: see run_linear."""
    run_linear(row, thread, n_threads, tile_1, tile_2, tile_n)


def _rows(row: int, thread: int, n_threads: int) -> None:
    """Rows of a matrix of one type: see run_embedding."""
    run_embedding(row, thread, n_threads, read_row)


def _kernel(template: Any, module: str, name: str, **used: Any) -> Kernel:
    copy = FunctionType(template.__code__, globals() | used, name)
    # Numba's cache files go by the qualified name and the file of the template.
    copy.__module__, copy.__qualname__ = module, f"{module.rpartition('.')[2]}_{name}"
    return Kernel(copy, cost=1 if template is _rows else 4)


def product_kernels(fmt: Format | FloatFormat, module: str) -> tuple[Kernel, Kernel, Kernel]:
    """Kernels called `linear`, `linear_16` (activations of 16 bits; float types: the same again) and `embedding`.

    `module` is the name of the module that binds them to these names.
    """
    bits = (8, 8) if isinstance(fmt, FloatFormat) else (8, 16)
    tiles = [dict(zip(("tile_1", "tile_2", "tile_n"), make_tiles(fmt, b), strict=True)) for b in bits]
    linear = _kernel(_product, module, "linear", **tiles[0])
    linear_16 = linear if bits[1] == 8 else _kernel(_product, module, "linear_16", **tiles[1])
    return linear, linear_16, _kernel(_rows, module, "embedding", read_row=make_row_reader(fmt))

"""Tiles: the generated inner loops of products, and the panels that they read; they know nothing of threads or rows.

A *tile* is one or two groups of 16 weight rows by T activation rows. Whatever its shape, an output element is computed
by the same operations in the same order, so a result does not depend on the batch:

    per sub-block of 32 columns    i = sum(code·x) - zero_point·sum(x)        exact, in int32
      or half of one that has      acc = fma(float(i), scale·d_x, acc)
      a scale of its own           acc = fma(minimum, d_x·sum(x), acc)        (types that have one)
    float weights, per 32 columns  p = w0·x0; p = fma(wk, xk, p); acc = acc + p
    at the end                     y = acc (+ bias) (+ residual)

Activations have 8 bits, or 16 where precision is worth the second multiply-add. Their rows are the records that
kernels_cpu.ops.quantize writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels_cpu import KernelError
from kernels_cpu.dots import PART_BYTES, BlockDot, BlockDot16, XSums
from kernels_cpu.ops.quantize import HALF_LANES, HALVES, ISUM, LANES, D, S, record_bytes
from kernels_cpu.quants.floats import FloatFormat
from kernels_cpu.quants.format import Format, Header, Scales, no_header
from kernels_cpu.simd import (
    AVX512,
    F32,
    I32,
    I64,
    SIGNED_CODES,
    V_F32X16,
    V_I8X64,
    V_I32X16,
    Builder,
    const,
    emit_broadcast4,
    emit_fma,
    emit_load,
    emit_splat,
    emit_store,
)

TILE_ROWS = 8 if AVX512 else 4
"""Activation rows of the largest tile: its sums of 16 lanes must fit the registers."""


class TileShape(NamedTuple):
    """Groups of 16 weight rows by activation rows."""

    groups: int
    rows: int


FEW_SHAPES, MANY_SHAPE = (TileShape(2, 1), TileShape(2, 2)), TileShape(1, TILE_ROWS)
"""What products are made of. With one or two rows they wait for memory, which two streams get more of than one."""

PANEL_COLUMNS = 1024
"""The weights of a group in so many columns, unpacked, stay in the first-level cache while activations pass by."""

PANEL_ROWS, NEVER = 24, 1 << 62
"""From so many activation rows on, unpacking first is worth it: no weights are fetched while a panel is worked on."""

MAX_PANEL_BYTES = PANEL_COLUMNS // 32 * (8 + 4) * 64
"""Bytes of a panel: of a sub-block 8 vectors of codes, at most two scales and two minimums."""


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
        return XSums(lambda: self._repeated(total), lambda: self._repeated(lanes))

    def _repeated(self, offset: int) -> ir.Value:
        return emit_broadcast4(self.b, self.words, offset, PART_BYTES)


@dataclass(frozen=True)
class _Place:
    """A sub-block of a group of weight rows: its address, and what the header in front of its block holds."""

    address: ir.Value
    header: Header


ADJACENT = const(I64, 1)
"""How many groups further the second group of a tile lies, where nothing else is said."""

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
        """Activations of columns 4k .. 4k + 3, repeated over a part, as a dot product takes them."""
        n = self.bits // 8
        return [emit_broadcast4(b, record.x, 4 * n * k + 4 * i, PART_BYTES) for i in range(n)]

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
            prepared = [dot.prepare(codes) for dot, (_, codes) in zip(dots[part][0], steps, strict=True)]
            for record, row_dots in zip(records, dots[part], strict=True):
                columns = self.columns(b, record, k)
                for dot, codes in zip(row_dots, prepared, strict=True):
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
    """Accumulators that hold 0."""
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
    apart: ir.Value = ADJACENT

    def rows(self, b: Builder, shape: TileShape) -> list[ir.Value]:
        """The addresses of the activation rows."""
        return [b.add(self.x, b.mul(self.x_stride, const(I64, k))) for k in range(shape.rows)]

    def groups(self, b: Builder, shape: TileShape, block_bytes: int) -> list[ir.Value]:
        """The addresses of the groups of weight rows."""
        group_bytes = b.mul(b.mul(self.n_blocks, const(I64, block_bytes)), self.apart)
        return [b.add(self.w, b.mul(group_bytes, const(I64, g))) for g in range(shape.groups)]


def _emit_quant_tile(
    b: Builder, fmt: Format, bits: int, shape: TileShape, operands: _Operands, accs: Accumulators
) -> None:
    """Add the products of a tile to its accumulators."""
    rows, groups = operands.rows(b, shape), operands.groups(b, shape, fmt.packed_block_bytes)
    products = _Products(fmt, bits)

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


def _emit_sign_changed(b: Builder, fmt: Format, codes: ir.Value) -> ir.Value:
    """Codes that are multiplied as signed bytes lie in a panel as such: the product changes their sign once more."""
    return b.xor(codes, const(codes.type, 0x80)) if SIGNED_CODES and fmt.max_code > 127 else codes


def _panel_format(fmt: Format) -> Format:
    """The form of a sub-block in a panel: 8 vectors of codes, then the scales and minimums, each <16 x f32>."""

    def scales(b: Builder, p: ir.Value, header: Header) -> Scales:
        vectors = [emit_load(b, V_F32X16, p, 512 + 64 * i) for i in range(fmt.n_scales + fmt.n_minimums)]
        own, rest = tuple(vectors[: fmt.n_scales]), tuple(vectors[fmt.n_scales :])
        return Scales(own, half_minimums=rest) if fmt.n_minimums == 2 else Scales(own, *rest)

    def codes(b: Builder, p: ir.Value) -> Iterator[tuple[int, ir.Value]]:
        return ((k, _emit_sign_changed(b, fmt, emit_load(b, V_I8X64, p, 64 * k))) for k in range(8))

    return replace(
        fmt,
        name=f"{fmt.name}_panel",
        block_columns=32,
        header_bytes=0,
        sub_bytes=512 + 64 * (fmt.n_scales + fmt.n_minimums),
        emit_header=no_header,
        emit_scales=scales,
        emit_codes=codes,
    )


def _emit_unpack(b: Builder, fmt: Format, w: ir.Value, n_blocks: ir.Value, panel: ir.Value) -> None:
    """Write the codes and scales of n_blocks blocks at w to a panel."""
    panel_bytes = _panel_format(fmt).sub_bytes
    with cgutils.for_range(b, n_blocks) as block:
        p = b.add(w, b.mul(block.index, const(I64, fmt.packed_block_bytes)))
        header = fmt.emit_header(b, p)
        with cgutils.for_range(b, const(I64, fmt.n_sub)) as sub:
            q = b.add(p, b.add(const(I64, fmt.header_bytes), b.mul(sub.index, const(I64, fmt.sub_bytes))))
            i = b.add(b.mul(block.index, const(I64, fmt.n_sub)), sub.index)
            to = b.add(panel, b.mul(i, const(I64, panel_bytes)))
            for k, codes in fmt.emit_codes(b, q):
                emit_store(b, _emit_sign_changed(b, fmt, codes), to, 64 * k)
            scaling = fmt.emit_scales(b, q, header)
            minimums = scaling.half_minimums or ((scaling.minimum,) if scaling.minimum is not None else ())
            if (len(scaling.scales), len(minimums)) != (fmt.n_scales, fmt.n_minimums):
                raise KernelError(f"{fmt.name}: expected {fmt.n_scales} scales and {fmt.n_minimums} minimums")
            for k, vector in enumerate((*scaling.scales, *minimums)):
                emit_store(b, vector, to, 512 + 64 * k)


def _make_unpack(fmt: Format | FloatFormat) -> Any:
    """Intrinsic (w, n_blocks, panel): the blocks at w are written to a panel, where a type has one."""

    @intrinsic
    def unpack(tyctx, w, n_blocks, panel):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            if isinstance(fmt, Format) and fmt.sub_bytes < 512:
                _emit_unpack(b, fmt, *a)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 3), gen

    return unpack


def _emit_float_tile(
    b: Builder, fmt: FloatFormat, bits: int, shape: TileShape, operands: _Operands, accs: Accumulators
) -> None:
    """Add the products of a tile to its accumulators."""
    rows, groups = operands.rows(b, shape), operands.groups(b, shape, fmt.packed_block_bytes)
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


def _emit_result(b: Builder, acc: ir.Value, out: ir.Value, bias: ir.Value, residual: ir.Value) -> None:
    """Store acc + bias + residual; an address of 0 means that there is none."""
    value = cgutils.alloca_once(b, V_F32X16)
    b.store(acc, value)
    for addend in (bias, residual):
        with b.if_then(b.icmp_unsigned("!=", addend, const(I64, 0))):
            b.store(b.fadd(b.load(value), emit_load(b, V_F32X16, addend)), value)
    emit_store(b, b.load(value), out)


def _emit_tile(
    b: Builder, fmt: Format | FloatFormat, bits: int, shape: TileShape, operands: _Operands, accs: Accumulators
) -> None:
    if isinstance(fmt, Format):
        _emit_quant_tile(b, fmt, bits, shape, operands, accs)
    else:
        _emit_float_tile(b, fmt, bits, shape, operands, accs)


@dataclass(frozen=True)
class _Results:
    """Where the results of a tile go, and what is added to them: addresses, of which 0 means that there is none."""

    out: ir.Value
    out_stride: ir.Value
    bias: ir.Value
    residual: ir.Value
    apart: ir.Value = ADJACENT

    def store(self, b: Builder, accs: Accumulators) -> None:
        has_bias, has_residual = (b.icmp_unsigned("!=", p, const(I64, 0)) for p in (self.bias, self.residual))
        for k, row_accs in enumerate(accs):
            for g, acc in enumerate(row_accs):
                beside = b.mul(self.apart, const(I64, 64 * g))
                offset = b.add(b.mul(self.out_stride, const(I64, k)), beside)
                bias = b.select(has_bias, b.add(self.bias, beside), self.bias)
                residual = b.select(has_residual, b.add(self.residual, offset), self.residual)
                _emit_result(b, b.load(acc), b.add(self.out, offset), bias, residual)


def _call(b: Builder, name: str, args: list[ir.Value], body: Callable[[Builder, list[ir.Value]], None]) -> None:
    """Call a function of the module, made with `body` at its first call: where a tile is used twice it is there once,
    and LLVM is done sooner with several small functions than with one."""
    fn = b.module.globals.get(name)
    if fn is None:
        fn = ir.Function(b.module, ir.FunctionType(ir.VoidType(), [I64] * len(args)), name)
        fn.linkage = "internal"
        fn.attributes.add("noinline")
        fn.attributes.alignstack = 64  # else what is spilled may straddle cache lines
        inside = Builder(fn.append_basic_block("entry"))
        body(inside, list(fn.args))
        inside.ret_void()
    b.call(fn, args)


def _tile_name(fmt: Format | FloatFormat, bits: int, shape: TileShape) -> str:
    return f"tile_{fmt.name}_{bits}_{shape.groups}x{shape.rows}"


def _make_tile(fmt: Format | FloatFormat, bits: int, shape: TileShape) -> Any:
    """Intrinsic (w, x, x_stride, n_blocks, out, out_stride, bias, residual, apart): a tile over all columns, of groups
    that lie so many groups apart."""

    def body(b: Builder, a: list[ir.Value]) -> None:
        accs = _zeros(b, shape)
        _emit_tile(b, fmt, bits, shape, _Operands(a[0], a[1], a[2], a[3], a[8]), accs)
        _Results(*a[4:]).store(b, accs)

    @intrinsic
    def tile(tyctx, w, x, x_stride, n_blocks, out, out_stride, bias, residual, apart):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            _call(b, _tile_name(fmt, bits, shape), list(a), body)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 9), gen

    return tile


def _make_chunk_tile(fmt: Format | FloatFormat, bits: int, shape: TileShape) -> Any:
    """Intrinsic (w, x, x_stride, n_blocks, sums, more, out, out_stride, bias, residual): a tile over some columns.

    It goes on from what is at `sums`, float32 [rows][16]; where there are `more` columns to come, its own go there.
    """

    def body(b: Builder, a: list[ir.Value]) -> None:
        accs, sums, more = _zeros(b, shape), a[4], a[5]
        for k, (acc,) in enumerate(accs):
            b.store(emit_load(b, V_F32X16, sums, 64 * k), acc)
        _emit_tile(b, fmt, bits, shape, _Operands(*a[:4]), accs)
        with b.if_else(b.icmp_unsigned("!=", more, const(I64, 0))) as (then, otherwise):
            with then:
                for k, (acc,) in enumerate(accs):
                    emit_store(b, b.load(acc), sums, 64 * k)
            with otherwise:
                _Results(*a[6:]).store(b, accs)

    @intrinsic
    def tile(tyctx, w, x, x_stride, n_blocks, sums, more, out, out_stride, bias, residual):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            _call(b, _tile_name(fmt, bits, shape), list(a), body)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 10), gen

    return tile


@dataclass(frozen=True)
class Tiles:
    """What the product kernel of a type and a width of activations is made of: names that `_product` uses.

    `tile_1` and `tile_2` are tiles of one and of two activation rows over all columns. `tile_n` works on `blocks`
    blocks of `block_bytes` at a time, which are `sub_blocks` sub-blocks each, while activations of a block take
    `x_bytes`; from `panel_rows` rows on `tile_panel` does so on what `unpack` has made of them.
    """

    tile_1: Any
    tile_2: Any
    tile_n: Any
    tile_panel: Any
    unpack: Any
    panel_rows: int
    blocks: int
    sub_blocks: int
    block_bytes: int
    x_bytes: int


def make_tiles(fmt: Format | FloatFormat, bits: int = 8) -> Tiles:
    """`bits` is the width of quantised activations; float weights take them as float32.

    Codes that are bytes already gain nothing from a panel; and activations of 16 bits are those of few rows.
    """
    tile_n = tile_panel = _make_chunk_tile(fmt, bits, MANY_SHAPE)
    panel_rows, n_sub, x_bytes = NEVER, fmt.block_columns // 32, 128
    if isinstance(fmt, Format):
        x_bytes = record_bytes(bits)
        if bits == 8 and fmt.sub_bytes < 512:
            panel_rows, tile_panel = PANEL_ROWS, _make_chunk_tile(_panel_format(fmt), bits, MANY_SHAPE)
    return Tiles(
        tile_1=_make_tile(fmt, bits, FEW_SHAPES[0]),
        tile_2=_make_tile(fmt, bits, FEW_SHAPES[1]),
        tile_n=tile_n,
        tile_panel=tile_panel,
        unpack=_make_unpack(fmt),
        panel_rows=panel_rows,
        blocks=max(1, PANEL_COLUMNS // fmt.block_columns),
        sub_blocks=n_sub,
        block_bytes=fmt.packed_block_bytes,
        x_bytes=n_sub * x_bytes,
    )

"""Attention's way through a page whose keys and values are quantised, for q8_0 and q4_0; generated.

See attention.py for the arithmetic and kv.py for the layout. Queries become integers of 16 bits with one scale for a
head, so that products with keys are exact integers; values are multiplied as floats. Packed queries are, for n of them:

    for each 32 columns: for each 4 columns [n][columns 0, 2, 1, 3] int16, then int32 [n]: -bias * sum of the 32
    then float32 [n]: scales
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import float32, int32, njit, types
from numba.extending import intrinsic

from kernels_cpu.ops.attention_parts import BATCH, N0, SCORE_STRIDE, SUMS, ZERO, emit_at
from kernels_cpu.ops.quantize import SMALLEST
from kernels_cpu.ops.rotation import copy_padded, rotate
from kernels_cpu.ops.scatter import scatter_fours
from kernels_cpu.simd import (
    F32,
    I8,
    I32,
    I64,
    V_F32X16,
    V_I16X32,
    V_I32X16,
    Builder,
    bitcast,
    const,
    emit_fma,
    emit_load,
    emit_load_f16,
    emit_loop,
    emit_maddwd,
    emit_pick,
    emit_prefetch,
    emit_splat,
    emit_store,
    emit_switch,
    even_then_odd,
    f32x16,
    fptosi,
    hmax,
    hsum,
    i16x16,
    i32x16,
    load,
    splat,
    st_f32,
    st_i32,
    trunc,
    vabs,
    vmax,
    vmin,
    vrint,
    word_f32,
    zero,
)

QUERY_BLOCK_BYTES = 68
"""Bytes of 32 columns of a packed query."""

BIAS_8, BIAS_4 = 128, 8
"""What stored integers have been raised by to be unsigned."""

LEVELS = 32767.0
"""Largest integer of a query."""


def _emit_words(b: Builder, v: ir.Value, bits: int) -> list[ir.Value]:
    """Keys of 16 positions as <32 x i16>: for each 4 columns the even ones, then the odd ones."""
    if bits == 8:
        return [b.and_(v, const(V_I16X32, 0xFF)), b.lshr(v, const(V_I16X32, 8))]
    low = const(V_I16X32, 0xF)
    even = [b.and_(v, low), b.and_(b.lshr(v, const(V_I16X32, 8)), low)]
    return [*even, b.and_(b.lshr(v, const(V_I16X32, 4)), low), b.lshr(v, const(V_I16X32, 12))]


def emit_score_blocks(b: Builder, bits: int, n: int, n_blocks: int, operands: list[ir.Value], scores: ir.Value) -> None:
    """Scores of n packed queries with `n_blocks` blocks of 16 positions, to scores, SCORE_STRIDE floats apart.

    operands: packed queries, scales and integers at the first of the blocks, number of blocks of 32 columns, ahead;
    as many bytes as are read of the integers are prefetched from `ahead` on.
    """
    q, scales, codes, n_columns, ahead = operands
    places = [(4 * SCORE_STRIDE * t, 64 * j) for j in range(n_blocks) for t in range(n)]
    for row, column in places:
        emit_store(b, ZERO, scores, row + column)

    def vectors(
        first: ir.Value, packed: ir.Value, further: ir.Value, i: ir.Value, sums: list[ir.Value]
    ) -> list[ir.Value]:
        at = emit_at(b, first, i, 128)
        for j in range(n_blocks):
            emit_prefetch(b, b.add(emit_at(b, further, i, 64 * n_blocks), const(I64, 64 * j)))
        words = [_emit_words(b, emit_load(b, V_I16X32, at, 64 * j), bits) for j in range(n_blocks)]
        pairs = emit_at(b, packed, i, 4 * n * len(words[0]))
        for k in range(len(words[0])):
            offsets = [8 * n * (k // 2) + 8 * t + 4 * (k % 2) for t in range(n)]
            x = [b.bitcast(emit_splat(b, V_I32X16, emit_load(b, I32, pairs, o)), V_I16X32) for o in offsets]
            sums = [b.add(s, emit_maddwd(b, words[m // n][k], x[m % n])) for m, s in enumerate(sums)]
        return sums

    def block(k: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        packed = emit_at(b, q, k, QUERY_BLOCK_BYTES * n)
        starts = [emit_splat(b, V_I32X16, emit_load(b, I32, packed, 64 * n + 4 * t)) for t in range(n)]
        first, further = emit_at(b, codes, k, 128 * bits), emit_at(b, ahead, k, 64 * bits * n_blocks)
        sums = emit_loop(
            b, N0, const(I64, bits), 1, starts * n_blocks, lambda i, s: vectors(first, packed, further, i, s)
        )
        d = [emit_load_f16(b, emit_at(b, scales, k, 64), 32 * j) for j in range(n_blocks)]
        for m, (row, column) in enumerate(places):
            before = emit_load(b, V_F32X16, scores, row + column)
            emit_store(b, emit_fma(b, b.sitofp(sums[m], V_F32X16), d[m // n], before), scores, row + column)
        return []

    emit_loop(b, N0, n_columns, 1, [], block)
    factors = emit_at(b, q, n_columns, QUERY_BLOCK_BYTES * n)
    for m, (row, column) in enumerate(places):
        factor = emit_splat(b, V_F32X16, emit_load(b, F32, factors, 4 * (m % n)))
        emit_store(b, b.fmul(emit_load(b, V_F32X16, scores, row + column), factor), scores, row + column)


def _make_score(bits: int) -> Any:
    @intrinsic
    def score(tyctx, n, q, k, head_dim, n_positions, scores, ahead):  # type: ignore[no-untyped-def]
        """As attention_floats' score."""

        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            n, q, k, d, n_positions, scores, ahead = a
            stop = emit_pick(b, "<", n_positions, const(I64, 32))
            n_columns = b.lshr(b.add(d, const(I64, 31)), const(I64, 5))
            codes = emit_at(b, k, n_columns, 64)

            def one_block(case: int, p: ir.Value) -> list[ir.Value]:
                further = b.add(ahead, b.mul(b.mul(n_columns, p), const(I64, 4 * bits)))
                operands = [q, emit_at(b, k, p, 2), emit_at(b, codes, p, 4), n_columns, further]
                emit_score_blocks(b, bits, case, 1, operands, emit_at(b, scores, p, 4))
                return []

            def body(case: int) -> None:
                if 2 * case < SUMS:
                    emit_score_blocks(b, bits, case, 2, [q, k, codes, n_columns, ahead], scores)
                else:
                    emit_loop(b, N0, stop, 16, [], lambda p, _: one_block(case, p))

            emit_switch(b, n, range(1, BATCH + 1), body)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 7), gen

    return score


def _emit_values(b: Builder, row: ir.Value, bits: int, part: int | None) -> list[ir.Value]:
    """The integers of 32 columns of a position as <16 x float>: both halves, or the one called for."""
    parts = (0, 1) if part is None else (part,)
    if bits == 8:
        codes = [emit_load(b, ir.VectorType(I8, 16), row, 16 * h) for h in parts]
    else:
        packed = emit_load(b, ir.VectorType(I8, 16), row)
        words = b.bitcast(packed, ir.VectorType(ir.IntType(16), 8))
        high = b.bitcast(b.lshr(words, const(words.type, 4)), packed.type)
        nibbles = [b.and_(packed if h == 0 else high, const(packed.type, 15)) for h in parts]
        codes = [b.sub(x, const(x.type, BIAS_4)) for x in nibbles]
    return [b.sitofp(b.sext(x, V_I32X16), V_F32X16) for x in codes]


def emit_weigh_block(
    b: Builder, bits: int, n: int, part: int | None, operands: list[ir.Value], o: list[ir.Value]
) -> None:
    """o[t][columns] += w[t][p] v[p] for positions p from first to end, ascending, for 32 columns or one half of them.

    operands: weights [n][32] times scales, integers of the columns, first, end, and how far beyond them lies what is
    prefetched.
    """
    w, codes, first, end, far = operands
    row_bytes, n_vectors = 4 * bits, 2 if part is None else 1

    def step(p: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        row, weight = emit_at(b, codes, p, row_bytes), emit_at(b, w, p, 4)
        if part != 1:
            emit_prefetch(b, b.add(row, far))
        x = [emit_splat(b, V_F32X16, emit_load(b, F32, weight, 128 * t)) for t in range(n)]
        values = _emit_values(b, row, bits, part)
        return [emit_fma(b, values[m // n], x[m % n], total) for m, total in enumerate(sums)]

    places = [(o[t], 64 * (j if part is None else part)) for j in range(n_vectors) for t in range(n)]
    sums = emit_loop(b, first, end, 1, [emit_load(b, V_F32X16, *place) for place in places], step)
    for total, place in zip(sums, places, strict=True):
        emit_store(b, total, *place)


def _make_weigh(bits: int) -> Any:
    @intrinsic
    def weigh(tyctx, n, weights, v, head_dim, first, end, out, stride, ahead, work):  # type: ignore[no-untyped-def]
        """As attention_floats' weigh; `work` has room for BATCH * 32 floats."""

        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            n, w, v, d, first, end, out, stride, ahead, work = a
            n_columns = b.lshr(b.add(d, const(I64, 31)), const(I64, 5))
            codes, far = emit_at(b, v, n_columns, 64), b.sub(ahead, v)

            def block(case: int, k: ir.Value) -> list[ir.Value]:
                for half in range(2):
                    scales = emit_load_f16(b, emit_at(b, v, k, 64), 32 * half)
                    for t in range(case):
                        x = b.fmul(emit_load(b, V_F32X16, w, 4 * SCORE_STRIDE * t + 64 * half), scales)
                        emit_store(b, x, work, 128 * t + 64 * half)
                start = emit_at(b, out, k, 128)
                o = [emit_at(b, start, stride, t) for t in range(case)]
                operands = [work, emit_at(b, codes, k, 128 * bits), first, end, far]
                for part in (None,) if 2 * case < SUMS else (0, 1):
                    emit_weigh_block(b, bits, case, part, operands, o)
                return []

            def body(case: int) -> None:
                emit_loop(b, N0, n_columns, 1, [], lambda k, _: block(case, k))

            emit_switch(b, n, range(1, BATCH + 1), body)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 10), gen

    return weigh


@njit
def _pack(q: int, to: int, n: int, t: int, head_dim: int, scale: float, rotation: int, work: int, bias: int) -> None:
    """See pack_q8_0."""
    n_columns = (head_dim + 31) // 32
    copy_padded(q, work, head_dim)
    if rotation > 1:
        rotate(work, head_dim, rotation)
    magnitudes = zero(i32x16)
    for x in range(work, work + 128 * n_columns, 64):
        magnitudes = vmax(magnitudes, bitcast(i32x16, vabs(load(f32x16, x))))
    largest = word_f32(hmax(magnitudes))  # among the bits, where NaN is largest of all
    inverse = float32(0.0) if largest < float32(SMALLEST) else float32(LEVELS) / largest
    limit = splat(f32x16, float32(LEVELS))
    for k in range(n_columns):
        block = to + QUERY_BLOCK_BYTES * n * k
        total = zero(i32x16)
        for half in range(2):
            y = load(f32x16, work + 128 * k + 64 * half) * splat(f32x16, inverse)
            codes = fptosi(i32x16, vrint(vmin(vmax(y, zero(f32x16) - limit), limit)))
            scatter_fours(block + 8 * t + 32 * n * half, 8 * n, even_then_odd(trunc(i16x16, codes)))
            total = total + codes
        st_i32(block + 64 * n + 4 * t, int32(-bias * hsum(total)))
    st_f32(to + QUERY_BLOCK_BYTES * n * n_columns + 4 * t, scale * (largest / float32(LEVELS)))


@njit
def pack_q8_0(q: int, to: int, n: int, t: int, head_dim: int, scale: float, rotation: int, work: int) -> None:
    """Query t of a batch of n, float32 [head_dim] at q, times scale, to its places among the packed queries at `to`.

    It is turned by a transform of size `rotation` first; `work` has room for head_dim rounded up to 32 floats.
    """
    _pack(q, to, n, t, head_dim, scale, rotation, work, BIAS_8)


@njit
def pack_q4_0(q: int, to: int, n: int, t: int, head_dim: int, scale: float, rotation: int, work: int) -> None:
    """As pack_q8_0."""
    _pack(q, to, n, t, head_dim, scale, rotation, work, BIAS_4)


score_q8_0, weigh_q8_0 = _make_score(8), _make_weigh(8)
score_q4_0, weigh_q4_0 = _make_score(4), _make_weigh(4)

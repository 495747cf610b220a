"""Attention's way through a page whose keys and values are quantised, for q8_0 and q4_0; generated.

See attention.py for the arithmetic and kv.py for the layout. Queries become integers of 16 bits with one scale for a
head, so that products with keys are exact integers; values are multiplied as floats. Packed queries are, for n of them:

    for each 32 columns: for each 4 columns [n][columns 0, 2, 1, 3] int16, then int32 [n]: -bias * sum of the 32
    then float32 [n]: scales
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import float32, int32, types
from numba.extending import intrinsic

from kernels_cpu.ops.attention_parts import (
    BATCH,
    LANES,
    N0,
    SCORE_STRIDE,
    SUMS,
    V_SUM,
    emit_at,
    emit_products,
)
from kernels_cpu.ops.quantize import SMALLEST
from kernels_cpu.ops.rotation import copy_padded, rotate
from kernels_cpu.ops.scatter import scatter_fours
from kernels_cpu.simd import (
    F32,
    I8,
    I16,
    I32,
    I64,
    V_F32X16,
    Builder,
    bitcast,
    const,
    emit_as_is,
    emit_fma,
    emit_half_to_float,
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
from kernels_cpu.subroutine import subroutine

QUERY_BLOCK_BYTES = 68
"""Bytes of 32 columns of a packed query."""

BIAS_8, BIAS_4 = 128, 8
"""What stored integers have been raised by to be unsigned."""

LEVELS = 32767.0
"""Largest integer of a query."""


def _emit_words(b: Builder, v: ir.Value, bits: int, k: int) -> ir.Value:
    """The k-th pairs of columns of keys v as i16: for each 4 columns the even ones (0, 2), then the odd ones (1, 3)."""

    def shifted(up: int, down: int) -> ir.Value:
        # Shifts, and no masks: these would take a register of those that hold sums.
        raised = b.shl(v, const(v.type, up)) if up else v
        return b.lshr(raised, const(v.type, down))

    return shifted(*((8, 8), (0, 8))[k]) if bits == 8 else shifted((12, 4, 8, 0)[k], 12)


def emit_score_blocks(b: Builder, bits: int, n: int, n_blocks: int, operands: list[ir.Value], scores: ir.Value) -> None:
    """Scores of n packed queries with `n_blocks` blocks of 16 positions, to scores, SCORE_STRIDE floats apart.

    operands: packed queries, scales and integers at the first of the blocks, number of blocks of 32 columns, ahead;
    as many bytes as are read of the integers are prefetched from `ahead` on.
    """
    q, scales, codes, n_columns, ahead = operands
    parts, n_words = range(n_blocks * 16 // LANES), 16 // bits
    at_once = 2 if LANES == 8 and n <= 4 else 1
    v_sum, v_words = ir.VectorType(I32, LANES), ir.VectorType(I16, 2 * LANES)
    places = [(4 * SCORE_STRIDE * t, 4 * LANES * part) for part in parts for t in range(n)]
    for row, column in places:
        emit_store(b, const(V_SUM, 0.0), scores, row + column)

    def vectors(at: ir.Value, pairs: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        found = list(sums)
        for first in parts[::at_once]:
            near = parts[first : first + at_once]
            v = [emit_load(b, v_words, at, 4 * LANES * part) for part in near]
            for k in range(n_words):
                words = [_emit_words(b, x, bits, k) for x in v]
                for t in range(n):
                    x = emit_load(b, I32, pairs, 8 * n * (k // 2) + 8 * t + 4 * (k % 2))
                    x = b.bitcast(emit_splat(b, v_sum, x), v_words)
                    for part, w in zip(near, words, strict=True):
                        total = b.add(found[part * n + t], emit_maddwd(b, w, x))
                        found[part * n + t] = emit_as_is(b, total) if LANES == 8 else total
        return found

    def block(k: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        packed = emit_at(b, q, k, QUERY_BLOCK_BYTES * n)
        starts = [emit_splat(b, v_sum, emit_load(b, I32, packed, 64 * n + 4 * t)) for t in range(n)]
        first, further = emit_at(b, codes, k, 128 * bits), emit_at(b, ahead, k, 64 * bits * n_blocks)

        def step(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            for j in range(n_blocks):
                emit_prefetch(b, b.add(emit_at(b, further, i, 64 * n_blocks), const(I64, 64 * j)))
            return vectors(emit_at(b, first, i, 128), emit_at(b, packed, i, 4 * n * n_words), sums)

        sums = emit_loop(b, N0, const(I64, bits), 1, starts * len(parts), step)
        halves = emit_at(b, scales, k, 64)
        for m, (row, column) in enumerate(places):
            d = emit_half_to_float(b, emit_load(b, ir.VectorType(I16, LANES), halves, column // 2))
            before = emit_load(b, V_SUM, scores, row + column)
            emit_store(b, emit_fma(b, b.sitofp(sums[m], V_SUM), d, before), scores, row + column)
        return []

    emit_loop(b, N0, n_columns, 1, [], block)
    factors = emit_at(b, q, n_columns, QUERY_BLOCK_BYTES * n)
    for m, (row, column) in enumerate(places):
        factor = emit_splat(b, V_SUM, emit_load(b, F32, factors, 4 * (m % n)))
        emit_store(b, b.fmul(emit_load(b, V_SUM, scores, row + column), factor), scores, row + column)


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


def _emit_values(b: Builder, row: ir.Value, bits: int, column: int) -> ir.Value:
    """The integers of LANES columns, from `column` of 32 on, of a position as floats."""
    codes = emit_load(b, ir.VectorType(I8, LANES), row, column if bits == 8 else column % 16)
    words = b.sext(codes, ir.VectorType(I32, LANES))
    if bits == 4:
        # Shifts, and no masks: these would take a register of those that hold sums.
        raised = words if column >= 16 else b.shl(words, const(words.type, 28))
        words = b.ashr(raised, const(words.type, 4 if column >= 16 else 28))
    return b.sitofp(words, V_SUM)


def emit_weigh_block(
    b: Builder, bits: int, n: int, part: int | None, operands: list[ir.Value], o: list[ir.Value]
) -> None:
    """o[t][columns] += w[t][p] v[p] for positions p from first to end, ascending, for 32 columns or one half of them.

    operands: weights [n][32] times scales, integers of the columns, first, end, and how far beyond them lies what is
    prefetched.
    """
    w, codes, first, end, far = operands
    row_bytes = 4 * bits
    columns = range(0, 32, LANES) if part is None else range(16 * part, 16 * part + 16, LANES)

    def step(p: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        row, weight = emit_at(b, codes, p, row_bytes), emit_at(b, w, p, 4)
        if part != 1:
            emit_prefetch(b, b.add(row, far))
        x = [b.add(weight, const(I64, 128 * t)) for t in range(n)]
        return emit_products(b, x, len(columns), lambda part: _emit_values(b, row, bits, columns[part]), sums)

    places = [(o[t], 4 * column) for column in columns for t in range(n)]
    sums = emit_loop(b, first, end, 1, [emit_load(b, V_SUM, *place) for place in places], step)
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
                for part in (None,) if 2 * case <= SUMS - (bits == 4) else (0, 1):
                    emit_weigh_block(b, bits, case, part, operands, o)
                return []

            def body(case: int) -> None:
                emit_loop(b, N0, n_columns, 1, [], lambda k, _: block(case, k))

            emit_switch(b, n, range(1, BATCH + 1), body)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 10), gen

    return weigh


@subroutine()
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


@subroutine()
def pack_q8_0(q: int, to: int, n: int, t: int, head_dim: int, scale: float, rotation: int, work: int) -> None:
    """Query t of a batch of n, float32 [head_dim] at q, times scale, to its places among the packed queries at `to`.

    It is turned by a transform of size `rotation` first; `work` has room for head_dim rounded up to 32 floats.
    """
    _pack(q, to, n, t, head_dim, scale, rotation, work, BIAS_8)


@subroutine()
def pack_q4_0(q: int, to: int, n: int, t: int, head_dim: int, scale: float, rotation: int, work: int) -> None:
    """As pack_q8_0."""
    _pack(q, to, n, t, head_dim, scale, rotation, work, BIAS_4)


score_q8_0, weigh_q8_0 = _make_score(8), _make_weigh(8)
score_q4_0, weigh_q4_0 = _make_score(4), _make_weigh(4)

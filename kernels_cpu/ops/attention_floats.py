"""Attention's way through a page whose keys and values are floats, for f32 and f16; generated.

See attention.py for the arithmetic and kv.py for the layout. Packed queries are float32 [head_dim][n queries].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels_cpu.ops.attention_parts import BATCH, LANES, N0, SCORE_STRIDE, SUMS, V_SUM, emit_at, emit_products
from kernels_cpu.ops.scatter import scatter_f32
from kernels_cpu.simd import (
    I16,
    I64,
    Builder,
    const,
    emit_half_to_float,
    emit_load,
    emit_loop,
    emit_pick,
    emit_prefetch,
    emit_store,
    emit_switch,
    f32x16,
    ld_f32,
    load,
    splat,
    st_f32,
)
from kernels_cpu.subroutine import subroutine

Loader = Callable[[Builder, ir.Value, int], ir.Value]
"""Emits a load of LANES values at an address and an offset in bytes, as floats."""

N_PARTS = 16 // LANES


def _load_f32(b: Builder, addr: ir.Value, offset: int = 0) -> ir.Value:
    return emit_load(b, V_SUM, addr, offset)


def _load_f16(b: Builder, addr: ir.Value, offset: int = 0) -> ir.Value:
    return emit_half_to_float(b, emit_load(b, ir.VectorType(I16, LANES), addr, offset))


def emit_score_blocks(
    b: Builder, fmt: tuple[int, Loader], n: int, n_blocks: int, operands: list[ir.Value], scores: ir.Value
) -> None:
    """Scores of n packed queries with `n_blocks` blocks of 16 positions, to scores, SCORE_STRIDE floats apart.

    operands: packed queries, keys at the first of the blocks, head_dim, ahead; as many bytes as are read of the keys
    are prefetched from `ahead` on. fmt is the bytes of a value and its loader.
    """
    size, load_part = fmt
    q, k, d, ahead = operands
    step_bytes = 16 * size * n_blocks

    def step(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        packed, column = emit_at(b, q, i, 4 * n), emit_at(b, k, i, 32 * size)
        for line in range(0, step_bytes, 64):
            emit_prefetch(b, b.add(emit_at(b, ahead, i, step_bytes), const(I64, line)))
        x = [b.add(packed, const(I64, 4 * t)) for t in range(n)]
        return emit_products(b, x, n_blocks * N_PARTS, lambda part: load_part(b, column, LANES * size * part), sums)

    sums = emit_loop(b, N0, d, 1, [const(V_SUM, 0.0)] * (n * n_blocks * N_PARTS), step)
    for m, total in enumerate(sums):
        emit_store(b, total, scores, 4 * SCORE_STRIDE * (m % n) + 4 * LANES * (m // n))


def _make_score(fmt: tuple[int, Loader]) -> Any:
    size = fmt[0]

    @intrinsic
    def score(tyctx, n, q, k, head_dim, n_positions, scores, ahead):  # type: ignore[no-untyped-def]
        """Scores of n <= BATCH packed queries with at least the first n_positions of a page's keys at k.

        They go to scores, 16 or 32 floats of each query, SCORE_STRIDE floats apart. A small batch takes both blocks of
        16 positions at once, for enough independent sums to keep the multipliers busy. The page's worth of keys or
        values at `ahead` is prefetched: pages are too short for the CPU to see it coming.
        """

        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            n, q, k, d, n_positions, scores, ahead = a
            stop = emit_pick(b, "<", n_positions, const(I64, 32))

            def one_block(case: int, p: ir.Value) -> list[ir.Value]:
                further = b.add(ahead, b.mul(b.mul(d, p), const(I64, size)))
                operands = [q, emit_at(b, k, p, size), d, further]
                emit_score_blocks(b, fmt, case, 1, operands, emit_at(b, scores, p, 4))
                return []

            def body(case: int) -> None:
                if 2 * case <= SUMS:
                    emit_score_blocks(b, fmt, case, 2, [q, k, d, ahead], scores)
                else:
                    emit_loop(b, N0, stop, 16, [], lambda p, _: one_block(case, p))

            emit_switch(b, n, range(1, BATCH + 1), body)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 7), gen

    return score


def emit_weigh_columns(
    b: Builder, fmt: tuple[int, Loader], n: int, n_vectors: int, operands: list[ir.Value], o: list[ir.Value]
) -> None:
    """o[t][16 n_vectors columns] += w[t][p] v[p] for positions p from first to end, ascending.

    operands: weights, values at the first of the columns, first, end, bytes from a position to the next, and how far
    beyond a position's values lies what is prefetched.
    """
    size, load_part = fmt
    w, v, first, end, stride, far = operands

    def step(p: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        row, weight = b.add(v, b.mul(p, stride)), emit_at(b, w, p, 4)
        for line in range(0, 16 * size * n_vectors, 64):
            emit_prefetch(b, b.add(b.add(row, far), const(I64, line)))
        x = [b.add(weight, const(I64, 4 * SCORE_STRIDE * t)) for t in range(n)]
        return emit_products(b, x, n_vectors * N_PARTS, lambda part: load_part(b, row, LANES * size * part), sums)

    places = [(o[t], 4 * LANES * j) for j in range(n_vectors * N_PARTS) for t in range(n)]
    sums = emit_loop(b, first, end, 1, [emit_load(b, V_SUM, *place) for place in places], step)
    for total, place in zip(sums, places, strict=True):
        emit_store(b, total, *place)


def _make_weigh(fmt: tuple[int, Loader]) -> Any:
    size = fmt[0]

    @intrinsic
    def weigh(tyctx, n, weights, v, head_dim, first, end, out, stride, ahead, work):  # type: ignore[no-untyped-def]
        """out[t] += sum of weights[t][p] * v[p] over first <= p < end of a page, for n <= BATCH queries.

        weights are SCORE_STRIDE floats apart, out is float32, `stride` bytes apart; columns beyond head_dim rounded up
        to 16 are left. A small batch takes 32 columns at once. The same positions at `ahead` are prefetched. `work` is
        not used.
        """

        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            n, w, v, d, first, end, out, stride, ahead, _ = a
            far = b.sub(ahead, v)
            width = b.and_(b.add(d, const(I64, 15)), const(I64, -16))
            in_pairs = b.and_(width, const(I64, -32))

            def columns(case: int, n_vectors: int, row_bytes: int, c: ir.Value, offset: int) -> None:
                start = b.add(emit_at(b, out, c, 4), const(I64, 4 * offset))
                o = [emit_at(b, start, stride, t) for t in range(case)]
                group = b.add(emit_at(b, v, c, 32 * size), const(I64, offset * size))
                operands = [w, group, first, end, const(I64, row_bytes), far]
                emit_weigh_columns(b, fmt, case, n_vectors, operands, o)

            def pair(case: int, c: ir.Value) -> list[ir.Value]:
                if 2 * case <= SUMS:
                    columns(case, 2, 32 * size, c, 0)
                else:
                    columns(case, 1, 32 * size, c, 0)
                    columns(case, 1, 32 * size, c, 16)
                return []

            def last(case: int, c: ir.Value) -> list[ir.Value]:
                columns(case, 1, 16 * size, c, 0)
                return []

            def body(case: int) -> None:
                emit_loop(b, N0, in_pairs, 32, [], lambda c, _: pair(case, c))
                emit_loop(b, in_pairs, width, 16, [], lambda c, _: last(case, c))

            emit_switch(b, n, range(1, BATCH + 1), body)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 10), gen

    return weigh


@subroutine()
def pack(q: int, to: int, n: int, t: int, head_dim: int, scale: float, rotation: int, work: int) -> None:
    """Query t of a batch of n, float32 [head_dim] at q, times scale, to its places among the packed queries at `to`.

    rotation and work are for the types that use them.
    """
    n_vector, place = head_dim // 16 * 16, to + 4 * t
    for d in range(0, n_vector, 16):
        scatter_f32(place + 4 * n * d, 4 * n, load(f32x16, q + 4 * d) * splat(f32x16, scale))
    for d in range(n_vector, head_dim):
        st_f32(place + 4 * n * d, ld_f32(q + 4 * d) * scale)


FLOATS: dict[str, tuple[int, Loader]] = {"f32": (4, _load_f32), "f16": (2, _load_f16)}
"""Bytes of a value and its loader."""

score_f32, weigh_f32 = _make_score(FLOATS["f32"]), _make_weigh(FLOATS["f32"])
score_f16, weigh_f16 = _make_score(FLOATS["f16"]), _make_weigh(FLOATS["f16"])

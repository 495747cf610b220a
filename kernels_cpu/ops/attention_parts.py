"""The inner loops of attention, generated; they know neither pages' owners nor how the work is split.

A state is a query's softmax over the positions seen so far: float32 [M in 16 lanes][L in 16 lanes][O of head_dim,
padded to 16]. Addresses and sizes are int64; see attention.py for the arithmetic.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels_cpu.simd import (
    F32,
    I32,
    I64,
    PATH,
    V_F32X16,
    V_I32X16,
    Builder,
    const,
    emit_exp,
    emit_fma,
    emit_load,
    emit_load_f16,
    emit_loop,
    emit_pick,
    emit_prefetch,
    emit_reduce,
    emit_splat,
    emit_store,
    emit_switch,
    emit_tanh,
)

SEGMENT = 256
"""Positions whose weights are computed with one maximum."""

BATCH = {"avx512": 8, "avx2": 6, "neon": 6, "portable": 2}[PATH]
"""Queries worked on at once: as many as the registers hold sums of 16 lanes for."""

HEADER = 32
"""Floats of a state in front of O."""

NOTHING = -1e30
"""M where nothing was seen. Finite, so that exp(M - M) is 1."""

ZERO, HIDDEN = const(V_F32X16, 0.0), const(V_F32X16, float("-inf"))
N0 = const(I64, 0)


def _at(b: Builder, base: ir.Value, i: ir.Value, size: int) -> ir.Value:
    """base + i * size"""
    return b.add(base, b.mul(i, const(I64, size)))


def _emit_score_blocks(
    b: Builder, n: int, n_blocks: int, q: ir.Value, k: ir.Value, d: ir.Value, s: ir.Value, ahead: ir.Value
) -> None:
    """Scores of n packed queries with `n_blocks` blocks of 16 positions at k, to s + SEGMENT floats for each query.

    As many bytes as are read at k are prefetched from `ahead` on.
    """

    def step(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        packed, column = _at(b, q, i, 4 * n), _at(b, k, i, 32)
        emit_prefetch(b, _at(b, ahead, i, 32 * n_blocks))
        x = [emit_splat(b, V_F32X16, emit_load(b, F32, packed, 4 * t)) for t in range(n)]
        keys = [emit_load_f16(b, _at(b, column, d, 32 * j)) for j in range(n_blocks)]
        return [emit_fma(b, keys[m // n], x[m % n], total) for m, total in enumerate(sums)]

    sums = emit_loop(b, N0, d, 1, [ZERO] * (n * n_blocks), step)
    for m, total in enumerate(sums):
        emit_store(b, total, s, 4 * SEGMENT * (m % n) + 64 * (m // n))


@intrinsic
def score(tyctx, n, q, k, head_dim, n_positions, scores, ahead):  # type: ignore[no-untyped-def]
    """Scores of n <= BATCH queries, packed [head_dim][n], with at least the first n_positions of a page's keys at k.

    They go to scores, 16 or 32 floats of each query, SEGMENT floats apart. A small batch takes both blocks of 16
    positions at once, for enough independent sums to keep the multipliers busy. The page's worth of keys or values at
    `ahead` is prefetched: pages are too short for the CPU to see it coming.
    """

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        n, q, k, d, n_positions, scores, ahead = a
        stop = emit_pick(b, "<", n_positions, const(I64, 32))

        def one_block(case: int, p: ir.Value) -> list[ir.Value]:
            block = b.mul(b.mul(d, p), const(I64, 2))
            _emit_score_blocks(b, case, 1, q, b.add(k, block), d, _at(b, scores, p, 4), b.add(ahead, block))
            return []

        def body(case: int) -> None:
            if 2 * case < BATCH:
                _emit_score_blocks(b, case, 2, q, k, d, scores, ahead)
            else:
                emit_loop(b, N0, stop, 16, [], lambda p, _: one_block(case, p))

        emit_switch(b, n, range(1, BATCH + 1), body)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 7), gen


def _emit_weigh_columns(
    b: Builder, n: int, n_vectors: int, w: ir.Value, v: ir.Value, span: list[ir.Value], o: list[ir.Value], far: ir.Value
) -> None:
    """o[t][16 n_vectors columns] += w[t][p] v[p] for positions p in span; v and o are at the first of the columns.

    span is first and end position, and bytes between positions. What lies `far` bytes after v is prefetched.
    """

    def step(p: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        row, weight = b.add(v, b.mul(p, span[2])), _at(b, w, p, 4)
        emit_prefetch(b, b.add(row, far))
        x = [emit_splat(b, V_F32X16, emit_load(b, F32, weight, 4 * SEGMENT * t)) for t in range(n)]
        values = [emit_load_f16(b, row, 32 * j) for j in range(n_vectors)]
        return [emit_fma(b, values[m // n], x[m % n], total) for m, total in enumerate(sums)]

    places = [(o[t], 64 * j) for j in range(n_vectors) for t in range(n)]
    sums = emit_loop(b, span[0], span[1], 1, [emit_load(b, V_F32X16, *place) for place in places], step)
    for total, place in zip(sums, places, strict=True):
        emit_store(b, total, *place)


@intrinsic
def weigh(tyctx, n, weights, v, width, first, end, out, stride, ahead):  # type: ignore[no-untyped-def]
    """out[t] += sum of weights[t][p] * v[p] over first <= p < end, for n <= BATCH queries and `width` columns.

    weights are SEGMENT floats apart, v is f16 [32][width], out is float32, `stride` bytes apart.
    A small batch takes 32 columns at once where there are as many. The same positions at `ahead` are prefetched.
    """

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        n, w, v, width, first, end, out, stride, ahead = a
        span, far = [first, end, b.mul(width, const(I64, 2))], b.sub(ahead, v)

        def columns(case: int, n_vectors: int, c: ir.Value) -> list[ir.Value]:
            start = _at(b, out, c, 4)
            o = [_at(b, start, stride, t) for t in range(case)]
            _emit_weigh_columns(b, case, n_vectors, w, _at(b, v, c, 2), span, o, far)
            return []

        def body(case: int) -> None:
            done = N0
            if 2 * case < BATCH:
                done = b.and_(width, const(I64, -32))
                emit_loop(b, N0, done, 32, [], lambda c, _: columns(case, 2, c))
            emit_loop(b, done, width, 16, [], lambda c, _: columns(case, 1, c))

        emit_switch(b, n, range(1, BATCH + 1), body)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 9), gen


@intrinsic
def soften(tyctx, scores, start, stop, first, end, cap, state):  # type: ignore[no-untyped-def]
    """Scores of positions start .. stop - 1 to weights, in place; M and L go to the header at state.

    Positions outside first .. end - 1 get the weight 0. start is a multiple of 16; a block of 16 that stop cuts is
    computed whole. With cap > 0 the scores are soft-capped before.
    """

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        scores, start, stop, first, end, cap, state = a
        lanes, limit = const(V_I32X16, range(16)), emit_splat(b, V_F32X16, cap)

        def in_place(begin: ir.Value, finish: ir.Value, change) -> None:  # type: ignore[no-untyped-def]
            def step(p: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                place = _at(b, scores, p, 4)
                emit_store(b, change(p, emit_load(b, V_F32X16, place)), place)
                return []

            emit_loop(b, begin, finish, 16, [], step)

        def lanes_below(p: ir.Value, border: ir.Value) -> ir.Value:
            distance = emit_splat(b, V_I32X16, b.trunc(b.sub(border, p), I32))
            return b.icmp_signed("<", lanes, distance)

        def exponentials(p: ir.Value, total: list[ir.Value]) -> list[ir.Value]:
            place = _at(b, scores, p, 4)
            w = emit_exp(b, b.fsub(emit_load(b, V_F32X16, place), most))
            emit_store(b, w, place)
            return [b.fadd(total[0], w)]

        capped = b.select(b.fcmp_ordered(">", cap, const(F32, 0.0)), stop, start)
        in_place(start, capped, lambda p, s: b.fmul(limit, emit_tanh(b, b.fdiv(s, limit))))
        last_cut = emit_pick(b, "<", first, stop)
        in_place(start, last_cut, lambda p, s: b.select(lanes_below(p, first), HIDDEN, s))
        first_cut = emit_pick(b, ">", b.and_(end, const(I64, -16)), start)
        in_place(first_cut, stop, lambda p, s: b.select(lanes_below(p, end), s, HIDDEN))
        most = emit_loop(
            b,
            start,
            stop,
            16,
            [const(V_F32X16, NOTHING)],
            lambda p, m: [emit_pick(b, ">", emit_load(b, V_F32X16, _at(b, scores, p, 4)), m[0])],
        )[0]
        most = emit_splat(b, V_F32X16, emit_reduce(b, most, lambda x, y: emit_pick(b, ">", x, y)))
        total = emit_loop(b, start, stop, 16, [ZERO], exponentials)[0]
        emit_store(b, most, state)
        emit_store(b, emit_splat(b, V_F32X16, emit_reduce(b, total, b.fadd)), state, 64)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 5, types.float32, types.int64), gen


@intrinsic
def clear(tyctx, state, width):  # type: ignore[no-untyped-def]
    """A state of `width` columns in which nothing was seen: M = NOTHING, L = 0, O = 0."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        state, width = a
        emit_store(b, const(V_F32X16, NOTHING), state)

        def step(c: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            emit_store(b, ZERO, _at(b, state, c, 4))
            return []

        emit_loop(b, const(I64, 16), b.add(width, const(I64, HEADER)), 16, [], step)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), gen


@intrinsic
def combine(tyctx, state, later, width):  # type: ignore[no-untyped-def]
    """Takes the state `later`, of later positions, into `state`."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        state, later, width = a
        m, n = emit_load(b, V_F32X16, state), emit_load(b, V_F32X16, later)
        both = emit_pick(b, ">", m, n)
        keep, take = emit_exp(b, b.fsub(m, both)), emit_exp(b, b.fsub(n, both))
        emit_store(b, both, state)

        def step(c: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            place = _at(b, state, c, 4)
            taken = b.fmul(emit_load(b, V_F32X16, _at(b, later, c, 4)), take)
            emit_store(b, emit_fma(b, emit_load(b, V_F32X16, place), keep, taken), place)
            return []

        emit_loop(b, const(I64, 16), b.add(width, const(I64, HEADER)), 16, [], step)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 3), gen


@intrinsic
def finish(tyctx, state, out, head_dim):  # type: ignore[no-untyped-def]
    """out[:head_dim] = O / L. Adding 0 turns -0, which an underflow may leave in one tile but not another, to 0."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        state, out, head_dim = a
        inverse = b.fdiv(const(V_F32X16, 1.0), emit_load(b, V_F32X16, state, 64))
        o = b.add(state, const(I64, 4 * HEADER))

        def vectors(c: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            y = b.fmul(emit_load(b, V_F32X16, _at(b, o, c, 4)), inverse)
            emit_store(b, b.fadd(y, ZERO), _at(b, out, c, 4))
            return []

        def tail(c: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            y = b.fmul(emit_load(b, F32, _at(b, o, c, 4)), b.extract_element(inverse, const(I32, 0)))
            emit_store(b, b.fadd(y, const(F32, 0.0)), _at(b, out, c, 4))
            return []

        whole = b.and_(head_dim, const(I64, -16))
        emit_loop(b, N0, whole, 16, [], vectors)
        emit_loop(b, whole, head_dim, 1, [], tail)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 3), gen


@intrinsic
def pack(tyctx, x, out, step, n, scale):  # type: ignore[no-untyped-def]
    """n floats at x, times scale, to places `step` bytes apart."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        x, out, step, n, scale = a

        def one(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            y = b.fmul(emit_load(b, F32, _at(b, x, i, 4)), scale)
            emit_store(b, y, b.add(out, b.mul(i, step)))
            return []

        emit_loop(b, N0, n, 1, [], one)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 4, types.float32), gen

"""The inner loops of attention that do not see the cache, generated: softmax, its states, sizes that all types share.

A state is a query's softmax over the positions seen so far: float32 [M in 16 lanes][L in 16 lanes][O of `width` lanes],
width being head_dim rounded up to 32. Addresses and sizes are int64; see attention.py for the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

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
    emit_fma,
    emit_load,
    emit_loop,
    emit_pick,
    emit_reduce,
    emit_splat,
    emit_store,
    emit_tanh,
)

SEGMENT = 256
"""Positions whose weights are computed with one maximum."""

SCORE_STRIDE = SEGMENT + 16
"""Floats from a query's scores to the next one's: not a power of 2, which would crowd few sets of the cache."""

BATCH = {"avx512": 8, "avx2": 6, "neon": 6, "portable": 2}[PATH]
"""Queries worked on at once."""

SUMS = {"avx512": 16, "avx2": 6, "neon": 6, "portable": 2}[PATH]
"""Sums of 16 lanes that the registers hold beside what is added to them."""

LANES = 8 if PATH == "avx2" else 16
"""Lanes of the sums that pages are added to: on AVX2 a register, so that one value at a time is beside them."""

V_SUM = ir.VectorType(F32, LANES)

HEADER = 32
"""Floats of a state in front of O."""

NOTHING = -1e30
"""M where nothing was seen. Finite, so that exp2(M - M) is 1."""

LOG2_E = 1.4426950408889634

ZERO = const(V_F32X16, 0.0)
N0 = const(I64, 0)

# Minimax coefficients, fitted for this file: (2^r - 1) / r for |r| <= 0.5.
_EXP2 = (0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957, 0.001326472614891827)


def emit_at(b: Builder, base: ir.Value, i: ir.Value, size: int) -> ir.Value:
    """base + i * size"""
    return b.add(base, b.mul(i, const(I64, size)))


def emit_exp2(b: Builder, x: ir.Value) -> ir.Value:
    """2^x of f32 lanes for x <= 127, relative error below 1.7e-7; exactly 0 below -126 and 1 at 0; NaN stays NaN.

    x = n + r, 2^r = 1 + r P(r) with a minimax P for |r| <= 0.5.
    """
    magic, words = const(x.type, 12582912.0), ir.VectorType(I32, x.type.count)
    t = b.fadd(x, magic)  # 1.5 * 2^23: the sum's low bits are the rounded integer n
    r = b.fsub(x, b.fsub(t, magic))
    p = const(x.type, _EXP2[-1])
    for c in (*_EXP2[-2::-1], 1.0):
        p = emit_fma(b, p, r, const(x.type, c))
    power = b.add(b.shl(b.bitcast(t, words), const(words, 23)), const(words, 127 << 23))
    y = b.fmul(p, b.bitcast(power, x.type))
    return b.select(b.fcmp_ordered("<", x, const(x.type, -126.0)), const(x.type, 0.0), y)


def emit_products(
    b: Builder, x: list[ir.Value], n_parts: int, values: Callable[[int], ir.Value], sums: list[ir.Value]
) -> list[ir.Value]:
    """sums[part * n + t] += x[t] * values(part), x being the addresses of n floats.

    LLVM keeps the order of what is emitted: the fewer of both sides stay in registers, the others come one at a time.
    """
    n, found = len(x), list(sums)

    def factor(t: int) -> ir.Value:
        return emit_splat(b, V_SUM, emit_load(b, F32, x[t]))

    if n <= n_parts:
        kept = [factor(t) for t in range(n)]
        for part in range(n_parts):
            v = values(part)
            for t in range(n):
                found[part * n + t] = emit_fma(b, v, kept[t], sums[part * n + t])
    else:
        kept = [values(part) for part in range(n_parts)]
        for t in range(n):
            f = factor(t)
            for part in range(n_parts):
                found[part * n + t] = emit_fma(b, kept[part], f, sums[part * n + t])
    return found


def _emit_in_place(
    b: Builder, scores: ir.Value, start: ir.Value, stop: ir.Value, change: Callable[[ir.Value, ir.Value], ir.Value]
) -> None:
    """scores[p : p + 16] = change(p, scores[p : p + 16]) for p from start, a multiple of 16, to stop."""

    def step(p: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        place = emit_at(b, scores, p, 4)
        emit_store(b, change(p, emit_load(b, V_F32X16, place)), place)
        return []

    emit_loop(b, start, stop, 16, [], step)


def _emit_hide(b: Builder, scores: ir.Value, start: ir.Value, stop: ir.Value, first: ir.Value, end: ir.Value) -> None:
    """Scores of positions outside first .. end - 1 become -inf. A visible NaN becomes +inf, whose weight is NaN too."""
    lanes = const(V_I32X16, range(16))
    shown, hidden = const(V_F32X16, float("inf")), const(V_F32X16, float("-inf"))

    def distance(p: ir.Value, border: ir.Value) -> ir.Value:
        return emit_splat(b, V_I32X16, b.trunc(b.sub(border, p), I32))

    def limited(p: ir.Value, s: ir.Value) -> ir.Value:
        is_in = b.and_(b.icmp_signed(">=", lanes, distance(p, first)), b.icmp_signed("<", lanes, distance(p, end)))
        return emit_pick(b, "<", s, b.select(is_in, shown, hidden))

    uncut = b.and_(b.add(first, const(I64, 15)), const(I64, -16))
    uncut = emit_pick(b, "<", emit_pick(b, ">", uncut, start), stop)
    _emit_in_place(b, scores, start, uncut, limited)
    cut = emit_pick(b, ">", b.and_(end, const(I64, -16)), uncut)
    _emit_in_place(b, scores, cut, stop, limited)


def _emit_largest(b: Builder, scores: ir.Value, start: ir.Value, stop: ir.Value) -> ir.Value:
    """The largest score in every lane, at least NOTHING; NaN is passed over."""

    def step(p: ir.Value, m: list[ir.Value]) -> list[ir.Value]:
        return [emit_pick(b, ">", emit_load(b, V_F32X16, emit_at(b, scores, p, 4)), m[0])]

    (most,) = emit_loop(b, start, stop, 16, [const(V_F32X16, NOTHING)], step)
    return emit_splat(b, V_F32X16, emit_reduce(b, most, lambda x, y: emit_pick(b, ">", x, y)))


def _emit_weights(b: Builder, scores: ir.Value, start: ir.Value, stop: ir.Value, most: ir.Value) -> ir.Value:
    """Scores to weights 2^(score - most), in place; gives their sum in 16 lanes. Two vectors at a time hide latency."""

    def step(n: int, p: ir.Value, total: list[ir.Value]) -> list[ir.Value]:
        place = emit_at(b, scores, p, 4)
        below = [b.fsub(emit_load(b, V_F32X16, place, 64 * i), most) for i in range(n)]
        for i, w in enumerate([emit_exp2(b, x) for x in below]):
            emit_store(b, w, place, 64 * i)
            total = [b.fadd(total[0], w)]
        return total

    in_pairs = b.add(start, b.and_(b.sub(stop, start), const(I64, -32)))
    total = emit_loop(b, start, in_pairs, 32, [ZERO], lambda p, t: step(2, p, t))
    return emit_loop(b, in_pairs, stop, 16, total, lambda p, t: step(1, p, t))[0]


@intrinsic
def soften(tyctx, scores, start, stop, first, end, cap, state):  # type: ignore[no-untyped-def]
    """Scores of positions start .. stop - 1, in units of log 2, to weights, in place; M and L go to the state's header.

    Positions outside first .. end - 1 get the weight 0. start and stop are multiples of 16. With cap > 0 the scores,
    then in natural units, are soft-capped before.
    """

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        scores, start, stop, first, end, cap, state = a
        capped = b.select(b.fcmp_ordered(">", cap, const(F32, 0.0)), stop, start)
        limit = emit_splat(b, V_F32X16, cap)
        most = b.fmul(limit, const(V_F32X16, LOG2_E))
        _emit_in_place(b, scores, start, capped, lambda p, s: b.fmul(most, emit_tanh(b, b.fdiv(s, limit))))
        _emit_hide(b, scores, start, stop, first, end)
        most = _emit_largest(b, scores, start, stop)
        total = _emit_weights(b, scores, start, stop, most)
        emit_store(b, most, state)
        emit_store(b, emit_splat(b, V_F32X16, emit_reduce(b, total, b.fadd)), state, 64)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 5, types.float32, types.int64), gen


@intrinsic
def empty(tyctx, state, width):  # type: ignore[no-untyped-def]
    """O = 0 in a state of `width` columns."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        state, width = a

        def step(c: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            emit_store(b, ZERO, emit_at(b, state, c, 4))
            return []

        emit_loop(b, const(I64, HEADER), b.add(width, const(I64, HEADER)), 16, [], step)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), gen


@intrinsic
def copy_state(tyctx, state, to, width):  # type: ignore[no-untyped-def]
    """The state of `width` columns at `state`, to `to`."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        state, to, width = a

        def step(c: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            emit_store(b, emit_load(b, V_F32X16, emit_at(b, state, c, 4)), emit_at(b, to, c, 4))
            return []

        emit_loop(b, N0, b.add(width, const(I64, HEADER)), 16, [], step)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 3), gen


@intrinsic
def combine(tyctx, state, later, width):  # type: ignore[no-untyped-def]
    """Takes the state `later`, of later positions, into `state`."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        state, later, width = a
        few = ir.VectorType(F32, 4)
        m, n = emit_load(b, few, state), emit_load(b, few, later)
        both = emit_pick(b, ">", m, n)
        factors = [b.extract_element(emit_exp2(b, b.fsub(x, both)), const(I32, 0)) for x in (m, n)]
        keep, take = (emit_splat(b, V_F32X16, x) for x in factors)
        emit_store(b, emit_splat(b, V_F32X16, b.extract_element(both, const(I32, 0))), state)

        def step(c: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            place = emit_at(b, state, c, 4)
            taken = b.fmul(emit_load(b, V_F32X16, emit_at(b, later, c, 4)), take)
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
            y = b.fmul(emit_load(b, V_F32X16, emit_at(b, o, c, 4)), inverse)
            emit_store(b, b.fadd(y, ZERO), emit_at(b, out, c, 4))
            return []

        def tail(c: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            y = b.fmul(emit_load(b, F32, emit_at(b, o, c, 4)), b.extract_element(inverse, const(I32, 0)))
            emit_store(b, b.fadd(y, const(F32, 0.0)), emit_at(b, out, c, 4))
            return []

        whole = b.and_(head_dim, const(I64, -16))
        emit_loop(b, N0, whole, 16, [], vectors)
        emit_loop(b, whole, head_dim, 1, [], tail)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 3), gen

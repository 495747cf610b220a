"""Causal attention over the paged KV cache: one arithmetic for a prompt's rows and for a single token.

The positions of a sequence are cut into segments of 256. Within a segment, for a query q (a row and a head):

    s[p] = sum over d ascending of (q[d] scale) k[p][d]; soft-capped; -inf where the row may not look
    m = max s;  w[p] = exp(s[p] - m);  l = sum w, in 16 lanes;  o[c] = sum over p ascending of w[p] v[p][c]

and segments are combined in ascending order, (M, L, O) beginning at (-1e30, 0, 0):

    M' = max(M, m);  L = L exp(M - M') + l exp(m - M');  O = O exp(M - M') + o exp(m - M');  finally out = O / L

A position that is hidden from a row adds exact zeros. So it does not matter for a row's result which other rows share
its tile, whether its segments are computed by one thread (many rows: the prompt) or by several (few rows: decoding,
where a long context must keep all threads busy), or in how many steps the sequence came.
All float32, from K and V in f16.

A tile is a run of rows of one sequence at consecutive positions; its queries are the rows times the heads that share a
kv head, and are worked through in groups that fit the registers, so K and V are read once for a group.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir
from numba import int64, njit, types
from numba.extending import intrinsic

from kernels_cpu.compile import kernel
from kernels_cpu.graph import PAGE_POSITIONS
from kernels_cpu.ops import arg, share
from kernels_cpu.ops.kv import kv_head_bytes, padded_head
from kernels_cpu.simd import (
    F32,
    I64,
    PATH,
    V_F32X16,
    Builder,
    const,
    emit_fma,
    emit_load,
    emit_load_f16,
    emit_loop,
    emit_splat,
    emit_store,
    emit_switch,
    f32_bits,
    f32x16,
    fma,
    hmax,
    hsum,
    i32x16,
    lane_iota,
    ld_f32,
    ld_i32,
    ld_i64,
    load,
    select_less,
    splat,
    st_f32,
    st_i64,
    store,
    vexp,
    vmax,
    vtanh,
    zero,
)
from kernels_cpu.sync import atomic_add

SEGMENT = 256
"""Positions whose weights are computed with one maximum."""

FEW_ROWS = 8
"""Up to so many rows in a step, a segment is an item of its own; beyond, an item has all segments of its tile."""

TILE_QUERIES = 24
"""A tile has as many rows as make this many queries, or a few more: enough to read K and V from the L2 cache."""

GROUP = {"avx512": 8, "avx2": 6, "neon": 6, "portable": 2}[PATH]
"""Queries worked on at once, as many as the registers hold sums of 16 lanes for."""

HEADER = 32
"""Floats in front of O in a state: M in 16 lanes, L in 16 lanes."""

COUNTER_BYTES = 128
NOTHING = -1e30
HIDDEN = float("-inf")


@njit(inline="always")
def _tile_rows(n_head: int, n_head_kv: int) -> int:
    group = n_head // n_head_kv
    return (TILE_QUERIES + group - 1) // group


@njit(inline="always")
def _packed_bytes(n_queries: int, head_dim: int) -> int:
    """Bytes of a tile's packed queries, rounded up to a multiple of 128."""
    return (4 * n_queries * head_dim + 127) // 128 * 128


@dataclass(frozen=True)
class AttentionScratch:
    """Sizes of the memory in which attention keeps what is not finished: zeros at the start, 64-byte aligned.

    It is laid out as: a counter of items (COUNTER_BYTES), `thread_bytes` for each thread, then at `partials_offset` the
    states of FEW_ROWS rows, `n_segments` segments and n_head heads. Layers may share it, even of different shapes.
    """

    n_threads: int
    n_ctx: int
    n_head: int
    n_head_kv: int
    head_dim: int

    @property
    def n_segments(self) -> int:
        return -(-self.n_ctx // SEGMENT)

    @property
    def state_bytes(self) -> int:
        return 4 * (HEADER + -(-self.head_dim // 16) * 16)

    @property
    def thread_bytes(self) -> int:
        n_queries = _tile_rows.py_func(self.n_head, self.n_head_kv) * (self.n_head // self.n_head_kv)
        packed = _packed_bytes.py_func(n_queries, self.head_dim)
        return int(packed + 4 * GROUP * SEGMENT + (GROUP + n_queries) * self.state_bytes)

    @property
    def partials_offset(self) -> int:
        return COUNTER_BYTES + self.n_threads * self.thread_bytes

    @property
    def n_bytes(self) -> int:
        return self.partials_offset + FEW_ROWS * self.n_segments * self.n_head * self.state_bytes


def _emit_score_blocks(b: Builder, n: int, n_blocks: int, q: ir.Value, k: ir.Value, d: ir.Value, s: ir.Value) -> None:
    """Scores of n packed queries with `n_blocks` blocks of 16 positions at k, to s + SEGMENT floats for each query."""

    def step(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        column = b.add(k, b.mul(i, const(I64, 32)))
        keys = [emit_load_f16(b, b.add(column, b.mul(d, const(I64, 32 * j)))) for j in range(n_blocks)]
        packed = b.add(q, b.mul(i, const(I64, 4 * n)))
        x = [emit_splat(b, V_F32X16, emit_load(b, F32, packed, 4 * t)) for t in range(n)]
        return [emit_fma(b, keys[m % n_blocks], x[m // n_blocks], total) for m, total in enumerate(sums)]

    sums = emit_loop(b, const(I64, 0), d, 1, [const(V_F32X16, 0.0)] * (n * n_blocks), step)
    for m, total in enumerate(sums):
        emit_store(b, total, s, 4 * SEGMENT * (m // n_blocks) + 64 * (m % n_blocks))


@intrinsic
def _score_page(tyctx, n, q, k, head_dim, n_blocks, scores):  # type: ignore[no-untyped-def]
    """Scores of n <= GROUP queries, packed [head_dim][n], with the first 1 or 2 blocks of a page's keys at k.

    They go to scores, 32 floats of each query SEGMENT floats apart. A small group takes both blocks at once, for
    enough independent sums to fill the multipliers.
    """

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        n, q, k, d, n_blocks, scores = a

        def one_block(case: int, i: ir.Value) -> list[ir.Value]:
            block = b.add(k, b.mul(b.mul(d, i), const(I64, 32)))
            _emit_score_blocks(b, case, 1, q, block, d, b.add(scores, b.mul(i, const(I64, 64))))
            return []

        def body(case: int) -> None:
            if 2 * case <= GROUP:
                _emit_score_blocks(b, case, 2, q, k, d, scores)
            else:
                emit_loop(b, const(I64, 0), n_blocks, 1, [], lambda i, _: one_block(case, i))

        emit_switch(b, n, range(1, GROUP + 1), body)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 6), gen


def _emit_weigh_columns(
    b: Builder,
    n: int,
    n_vectors: int,
    w: ir.Value,
    v: ir.Value,
    width: ir.Value,
    span: list[ir.Value],
    o: list[ir.Value],
) -> None:
    """o[t][16 n_vectors columns] += w[t][p] v[p] for positions p in span; v and o are at the first of the columns."""

    def step(p: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        row = b.add(v, b.mul(p, b.mul(width, const(I64, 2))))
        values = [emit_load_f16(b, row, 32 * j) for j in range(n_vectors)]
        weight = b.add(w, b.mul(p, const(I64, 4)))
        x = [emit_splat(b, V_F32X16, emit_load(b, F32, weight, 4 * SEGMENT * t)) for t in range(n)]
        return [emit_fma(b, values[m % n_vectors], x[m // n_vectors], total) for m, total in enumerate(sums)]

    places = [(o[t], 64 * j) for t in range(n) for j in range(n_vectors)]
    sums = emit_loop(b, span[0], span[1], 1, [emit_load(b, V_F32X16, *place) for place in places], step)
    for total, place in zip(sums, places, strict=True):
        emit_store(b, total, *place)


@intrinsic
def _weigh_page(tyctx, n, weights, v, width, first, end, out, stride):  # type: ignore[no-untyped-def]
    """out[t] += sum of weights[t][p] * v[p] over first <= p < end, for n <= GROUP queries and `width` columns.

    weights are SEGMENT floats apart, v is f16 [32][width], out is float32, `stride` bytes apart.
    A small group takes 32 columns at once where there are as many.
    """

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        n, w, v, width, first, end, out, stride = a

        def columns(case: int, n_vectors: int, c: ir.Value) -> list[ir.Value]:
            start = b.add(out, b.mul(c, const(I64, 4)))
            o = [b.add(start, b.mul(stride, const(I64, t))) for t in range(case)]
            at = b.add(v, b.mul(c, const(I64, 2)))
            _emit_weigh_columns(b, case, n_vectors, w, at, width, [first, end], o)
            return []

        def body(case: int) -> None:
            done = const(I64, 0)
            if 2 * case <= GROUP:
                done = b.and_(width, const(I64, -32))
                emit_loop(b, const(I64, 0), done, 32, [], lambda c, _: columns(case, 2, c))
            emit_loop(b, done, width, 16, [], lambda c, _: columns(case, 1, c))

        emit_switch(b, n, range(1, GROUP + 1), body)
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 8), gen


@njit
def _soften(scores: int, start: int, stop: int, first: int, end: int, cap: float, state: int) -> None:
    """Scores of positions start .. stop - 1 to weights, in place; those outside first .. end - 1 become 0.

    start is a multiple of 16; a block of 16 that stop cuts is computed whole. M and L go to the header at state.
    """
    most, hidden = splat(f32x16, NOTHING), splat(f32x16, HIDDEN)
    limit = splat(f32x16, cap)
    for p in range(start, stop, 16):
        s = load(f32x16, scores + 4 * p)
        if cap > 0:
            s = limit * vtanh(s / limit)
        if p < first or p + 16 > end:
            index = lane_iota(i32x16)
            s = select_less(index, splat(i32x16, end - p), s, hidden)
            s = select_less(index, splat(i32x16, first - p), hidden, s)
        store(scores + 4 * p, s)
        most = vmax(s, most)
    most = splat(f32x16, hmax(most))
    total = zero(f32x16)
    for p in range(start, stop, 16):
        w = vexp(load(f32x16, scores + 4 * p) - most)
        store(scores + 4 * p, w)
        total = total + w
    store(state, most)
    store(state + 64, splat(f32x16, hsum(total)))


@njit
def _clear(state: int, width: int) -> None:
    """The state of nothing seen: M = NOTHING, L = 0, O = 0."""
    store(state, splat(f32x16, NOTHING))
    for c in range(64, 128 + 4 * width, 64):
        store(state + c, zero(f32x16))


@njit
def _combine(state: int, later: int, width: int) -> None:
    """Takes the state of later positions into `state`."""
    m, n = load(f32x16, state), load(f32x16, later)
    both = vmax(m, n)
    a, b = vexp(m - both), vexp(n - both)
    store(state, both)
    for c in range(64, 128 + 4 * width, 64):
        store(state + c, fma(load(f32x16, state + c), a, load(f32x16, later + c) * b))


@njit
def _finish(state: int, out: int, head_dim: int) -> None:
    """out[:head_dim] = O / L. Adding 0 makes -0 (an underflow that depends on the tile) 0."""
    inverse = splat(f32x16, 1.0) / load(f32x16, state + 64)
    for c in range(0, head_dim, 16):
        y = load(f32x16, state + 128 + 4 * c) * inverse + zero(f32x16)
        if c + 16 <= head_dim:
            store(out + 4 * c, y)
        else:
            store(state + 128 + 4 * c, y)
            for k in range(c, head_dim):
                st_f32(out + 4 * k, ld_f32(state + 128 + 4 * k))


@njit
def _pack(q: int, q_stride: int, packed: int, first: int, n: int, group: int, head_dim: int, scale: float) -> None:
    """Queries first .. first + n - 1 of a tile, times scale, to packed [head_dim][n]. Query j is head j % group of
    row j // group."""
    for t in range(n):
        i = (first + t) // group
        x = q + i * q_stride + 4 * head_dim * (first + t - i * group)
        for d in range(head_dim):
            st_f32(packed + 4 * (d * n + t), ld_f32(x + 4 * d) * scale)


@njit
def _tile_end(start: int, n: int, limit: int, positions: int, slots: int) -> int:
    """End of the run of at most `limit` rows from `start` on, of one slot and at consecutive positions."""
    end = start + 1
    while (
        end < n
        and end < start + limit
        and ld_i32(slots + 4 * end) == ld_i32(slots + 4 * start)
        and ld_i32(positions + 4 * end) == ld_i32(positions + 4 * start) + end - start
    ):
        end += 1
    return end


@njit
def _segment(
    row: int, kv_head: int, start: int, n_rows: int, segment: int, scratch: int, states: int, n_queries: int
) -> None:
    """Combines one segment into the states of a tile's queries; packed queries are at scratch, room is behind them."""
    page_bytes, head_dim, window, cap = arg(row, 6), arg(row, 9), arg(row, 15), f32_bits(arg(row, 16))
    base, width = arg(row, 5) + kv_head * kv_head_bytes(head_dim), padded_head(head_dim)
    state_bytes, group = 4 * (HEADER + width), n_queries // n_rows
    scores = scratch + _packed_bytes(n_queries, head_dim)
    partial = scores + 4 * GROUP * SEGMENT
    position = ld_i32(arg(row, 10) + 4 * start) - segment * SEGMENT
    begin, end = 0, min(position + n_rows, SEGMENT)
    if window > 0:
        begin = max(position - window + 1, 0)
    pages = arg(row, 12) + 4 * (arg(row, 13) * ld_i32(arg(row, 11) + 4 * start) + segment * (SEGMENT // PAGE_POSITIONS))
    first_page, end_page = begin // PAGE_POSITIONS, (end + PAGE_POSITIONS - 1) // PAGE_POSITIONS
    n_groups = (n_queries + GROUP - 1) // GROUP
    for g in range(n_groups):
        j = share(n_queries, g, n_groups)
        n = share(n_queries, g + 1, n_groups) - j
        for page in range(first_page, end_page):
            keys = base + ld_i32(pages + 4 * page) * page_bytes
            n_blocks = min((end - PAGE_POSITIONS * page + 15) // 16, 2)
            _score_page(n, scratch + 4 * j * head_dim, keys, head_dim, n_blocks, scores + 128 * page)
        for t in range(n):
            p = position + (j + t) // group
            visible = p - window + 1 if window > 0 else 0
            state = partial + t * state_bytes
            _clear(state, width)
            _soften(scores + 4 * SEGMENT * t, begin // 16 * 16, end, visible, p + 1, cap, state)
        for page in range(first_page, end_page):
            values = base + ld_i32(pages + 4 * page) * page_bytes + 64 * head_dim
            first, stop = max(begin - PAGE_POSITIONS * page, 0), min(end - PAGE_POSITIONS * page, PAGE_POSITIONS)
            _weigh_page(n, scores + 128 * page, values, width, first, stop, partial + 4 * HEADER, state_bytes)
        for t in range(n):
            _combine(states + (j + t) * state_bytes, partial + t * state_bytes, width)


@njit
def _item(
    row: int, kv_head: int, start: int, n_rows: int, first_segment: int, end_segment: int, scratch: int, few: bool
) -> None:
    """Attention of a tile of n_rows rows from row `start` on to some segments of a kv head: the result, or its states
    if few."""
    q_stride, out_stride, head_dim, n_head = arg(row, 2), arg(row, 4), arg(row, 9), arg(row, 7)
    group = n_head // arg(row, 8)
    first_head = kv_head * group
    n_queries, width = n_rows * group, padded_head(head_dim)
    state_bytes = 4 * (HEADER + width)
    states = scratch + _packed_bytes(n_queries, head_dim) + GROUP * (4 * SEGMENT + state_bytes)
    q = arg(row, 1) + start * q_stride + 4 * first_head * head_dim
    n_groups = (n_queries + GROUP - 1) // GROUP
    for g in range(n_groups):
        j = share(n_queries, g, n_groups)
        n = share(n_queries, g + 1, n_groups) - j
        _pack(q, q_stride, scratch + 4 * j * head_dim, j, n, group, head_dim, f32_bits(arg(row, 14)))
    for j in range(n_queries):
        _clear(states + j * state_bytes, width)
    for segment in range(first_segment, end_segment):
        _segment(row, kv_head, start, n_rows, segment, scratch, states, n_queries)
    for j in range(n_queries):
        i = start + j // group
        head = first_head + j % group
        if few:
            kept = arg(row, 19) + ((i * arg(row, 20) + first_segment) * n_head + head) * state_bytes
            _clear(kept, width)
            _combine(kept, states + j * state_bytes, width)
        else:
            _finish(states + j * state_bytes, arg(row, 3) + i * out_stride + 4 * head * head_dim, head_dim)


@kernel
def attention_partial(row: int, thread: int, n_threads: int) -> None:
    """Attention of the step's rows, whose keys and values are in the cache; finished unless the rows are few.

    Arguments: count, q, q_stride, out, out_stride, base, page_bytes, n_head, n_head_kv, head_dim, positions, slots,
    page_tables, max_pages, scale_bits, window (0: none), softcap_bits (0: none), scratch, thread_bytes, partials,
    n_segments, the last four as AttentionScratch says (partials = scratch + partials_offset). Out must not be q.
    A barrier and attention_merge, with the same arguments, must follow.

    Threads take items as they get free: (tile, kv head), or (tile, kv head, segment) when the step has at most FEW_ROWS
    rows; the states of these go to `partials`.
    """
    n, n_head, n_head_kv = ld_i64(arg(row, 0)), arg(row, 7), arg(row, 8)
    positions, window, counter = arg(row, 10), arg(row, 15), arg(row, 17)
    scratch = counter + COUNTER_BYTES + thread * arg(row, 18)
    few = n <= FEW_ROWS
    item, before, start = atomic_add(counter, 1), int64(0), int64(0)  # literals would compile everything twice
    while start < n:
        stop = _tile_end(start, n, _tile_rows(n_head, n_head_kv), positions, arg(row, 11))
        position = ld_i32(positions + 4 * start)
        first = max(position - window + 1, 0) // SEGMENT if window > 0 else 0
        end = (position + stop - start - 1) // SEGMENT + 1
        n_parts = end - first if few else 1
        while item < before + n_head_kv * n_parts:
            kv_head = (item - before) // n_parts
            part = first + item - before - kv_head * n_parts
            _item(row, kv_head, start, stop - start, part, part + 1 if few else end, scratch, few)
            item = atomic_add(counter, 1)
        before += n_head_kv * n_parts
        start = stop


@kernel
def attention_merge(row: int, thread: int, n_threads: int) -> None:
    """Second half of attention_partial, with its arguments: combines the segments of few rows, split by (row, head)."""
    n, n_head, head_dim, window = ld_i64(arg(row, 0)), arg(row, 7), arg(row, 9), arg(row, 15)
    partials, n_segments = arg(row, 19), arg(row, 20)
    state = arg(row, 17) + COUNTER_BYTES + thread * arg(row, 18)
    width = padded_head(head_dim)
    if thread == 0:
        st_i64(arg(row, 17), 0)
    if n > FEW_ROWS:
        return
    for item in range(share(n * n_head, thread, n_threads), share(n * n_head, thread + 1, n_threads)):
        i = item // n_head
        head = item - i * n_head
        p = ld_i32(arg(row, 10) + 4 * i)
        first = max(p - window + 1, 0) // SEGMENT if window > 0 else 0
        _clear(state, width)
        for segment in range(first, p // SEGMENT + 1):
            kept = partials + ((i * n_segments + segment) * n_head + head) * (4 * (HEADER + width))
            _combine(state, kept, width)
        _finish(state, arg(row, 3) + i * arg(row, 4) + 4 * head * head_dim, head_dim)

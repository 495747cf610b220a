"""Causal attention over the paged KV cache: one arithmetic for a prompt's rows and for a single token.

The positions of a sequence are cut into segments of 256. Within a segment, for a query q (a row and a head), with
s = scale * log2(e), or scale where scores are soft-capped:

    f32, f16     s[p] = sum over d ascending of (q[d] s) k[p][d]
    q8_0, q4_0   s[p] = (sum over blocks of 32 columns ascending of float(i[p]) d[p]) * (s dq), i[p] the exact product
                 of the key's integers with those of q, which has 16 bits and one scale dq
    soft-capped: s[p] = cap log2(e) tanh(s[p] / cap); then -inf where the row may not look
    m = max s;  w[p] = 2^(s[p] - m);  l = sum w, in 16 lanes;  o[c] = sum over p ascending of w[p] v[p][c]
    (q8_0, q4_0: (w[p] d[p]) times the value's integer)

and segments are combined in ascending order, (M, L, O) beginning with the first:

    M' = max(M, m);  L = L 2^(M - M') + l 2^(m - M');  O = O 2^(M - M') + o 2^(m - M');  finally out = O / L

All in float32 but for the integers. A position that is hidden from a row adds an exact zero to l and nothing to o. So
it does not matter for a row's result which other rows share its tile, in how many steps the sequence came, or whether
its segments are computed by one thread (many rows: a prompt) or by several (few rows: decoding, where a long context
must keep all threads busy). Where a type rotates heads, q is turned before and out afterwards: see kv_rounding.

A tile is a run of rows of one sequence at consecutive positions. Its queries are its rows times the heads that share a
kv head; they are worked through in batches that fit the registers, so that K and V are read and widened once for a
batch, and from the cache for all batches but the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from numba import float32, int64, types

from kernels_cpu.compile import Kernel, kernel
from kernels_cpu.graph import PAGE_POSITIONS
from kernels_cpu.ops import arg, round_up, share, specialised
from kernels_cpu.ops.attention_codes import pack_q4_0, pack_q8_0, score_q4_0, score_q8_0, weigh_q4_0, weigh_q8_0
from kernels_cpu.ops.attention_floats import pack, score_f16, score_f32, weigh_f16, weigh_f32
from kernels_cpu.ops.attention_parts import (
    BATCH,
    HEADER,
    LOG2_E,
    SCORE_STRIDE,
    SEGMENT,
    combine,
    copy_state,
    empty,
    finish,
    soften,
)
from kernels_cpu.ops.rotation import rotate
from kernels_cpu.simd import f32_bits, larger, ld_i32, ld_i64, smaller, st_i64
from kernels_cpu.subroutine import subroutine
from kernels_cpu.sync import atomic_add, call_kernel

FEW_ROWS = 8
"""Up to so many rows in a step, a segment is an item of its own; beyond, an item has all segments of its tile."""

TILE_QUERIES = 24
"""A tile has as many rows as make this many queries, or a few more: enough to hide the time to read K and V."""

ITEM_QUERIES = 48
"""An item of one segment has as many kv heads as make at most this many queries: longer runs of memory to read."""

DONE, COUNTER_BYTES = 128, 128
"""The counters: the next item at 0, threads that found none at 64, and from DONE on, segments done, 8 bytes a unit."""

JOB_BYTES, UNIT_BYTES = 128, 48

# Words of a job, in bytes; the first six say what to do, the others where the thread keeps what it needs for that.
KV_HEAD, N_HEADS, FIRST_ROW, N_ROWS, FIRST_SEGMENT, END_SEGMENT = 0, 8, 16, 24, 32, 40
N_QUERIES, UNITS, END_UNIT, PACKED, SCORES, STATES, PARTIAL, WORK = 48, 56, 64, 72, 80, 88, 96, 104

# Words of a unit, a batch of queries of one kv head: number of queries, first query, offset of their keys and values in
# a page, first and last row, counted in the tile.
SIZE, QUERY, KEYS, VALUES, LOW_ROW, HIGH_ROW = 0, 8, 16, 24, 32, 40


def _rounded(n: int, unit: int) -> int:
    return -(-n // unit) * unit


@dataclass(frozen=True)
class AttentionScratch:
    """Sizes of the memory in which attention keeps what is not finished: zeros at the start, 64-byte aligned.

    It is laid out as: counters, then at `threads_offset` `thread_bytes` for each thread, then at `partials_offset` the
    states of FEW_ROWS rows, `n_segments` segments and n_head heads. Layers may share it, even of different shapes.
    A thread's part is laid out as: the job; work memory (`work_bytes`, from JOB_BYTES on); units; packed queries;
    scores; states of one segment; states of all.
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
        return 4 * (HEADER + _rounded(self.head_dim, 32))

    @property
    def work_bytes(self) -> int:
        """Room for a key and a value of one head, and for 32 weights of each query of a batch."""
        return max(8 * _rounded(self.head_dim, 32), 128 * BATCH)

    @property
    def thread_bytes(self) -> int:
        n_queries = max(ITEM_QUERIES, _rounded(TILE_QUERIES, self.n_head // self.n_head_kv))
        each = 4 * _rounded(self.head_dim, 32) + UNIT_BYTES + 4 * SCORE_STRIDE + 2 * self.state_bytes
        return _rounded(JOB_BYTES + self.work_bytes + n_queries * each, 128)

    @property
    def threads_offset(self) -> int:
        return COUNTER_BYTES + _rounded(8 * FEW_ROWS * self.n_head_kv, 128)

    @property
    def partials_offset(self) -> int:
        return self.threads_offset + self.n_threads * self.thread_bytes

    @property
    def n_bytes(self) -> int:
        n_states = FEW_ROWS * self.n_segments * self.n_head
        return self.partials_offset + n_states * self.state_bytes


@subroutine(int64)
def _tile_end(start: int, n: int, limit: int, positions: int, slots: int) -> int:
    """End of the run of at most `limit` rows from `start` on, of one slot and at consecutive positions."""
    end, limit = start + 1, smaller(n, start + limit)
    slot, position = ld_i32(slots + 4 * start), ld_i32(positions + 4 * start) - start
    while end < limit and ld_i32(slots + 4 * end) == slot and ld_i32(positions + 4 * end) == position + end:
        end += 1
    return end


@subroutine(int64)
def _heads_at_once(n_head_kv: int, n_queries: int, n_segments: int, n_threads: int) -> int:
    """How many kv heads, of n_queries each, make an item of one segment: one where there are few segments to share."""
    if n_segments < 2 * n_threads:
        return 1
    return smaller(larger(ITEM_QUERIES // n_queries, 1), n_head_kv)


@subroutine(int64, inlined=True)
def _first_seen(position: int, window: int) -> int:
    """The first position that a row at `position` sees."""
    return larger(position - window + 1, 0) if window > 0 else int64(0)


@subroutine(int64, inlined=True)
def _kept(row: int, i: int, segment: int, head: int) -> int:
    """Where the state of row i, a segment and a head is kept until all segments are there."""
    state_bytes = 4 * (HEADER + round_up(arg(row, 9), 32))
    return arg(row, 20) + ((i * arg(row, 21) + segment) * arg(row, 7) + head) * state_bytes


@subroutine()
def _put_out(row: int, state: int, i: int, head: int) -> None:
    """The result of row i and a head from its state."""
    out = arg(row, 3) + i * arg(row, 4) + 4 * head * arg(row, 9)
    finish(state, out, arg(row, 9))
    if arg(row, 25) > 1:
        rotate(out, arg(row, 9), arg(row, 25))


@subroutine()
def _merge(row: int, job: int) -> None:
    """Combines the segments of a job's rows and heads, once all are kept. Each head's are in the caches of all."""
    group, width = arg(row, 7) // arg(row, 8), round_up(arg(row, 9), 32)
    state = ld_i64(job + STATES)
    head, end_head = ld_i64(job + KV_HEAD) * group, (ld_i64(job + KV_HEAD) + ld_i64(job + N_HEADS)) * group
    for i in range(ld_i64(job + FIRST_ROW), ld_i64(job + FIRST_ROW) + ld_i64(job + N_ROWS)):
        position = int64(ld_i32(arg(row, 10) + 4 * i))
        first = _first_seen(position, arg(row, 15)) // SEGMENT
        for h in range(head, end_head):
            copy_state(_kept(row, i, first, h), state, width)
            for segment in range(first + 1, position // SEGMENT + 1):
                combine(state, _kept(row, i, segment, h), width)
            _put_out(row, state, i, h)


@partial(kernel, cost=4)
def attention(row: int, thread: int, n_threads: int) -> None:
    """Attention of the step's rows, whose keys and values are in the cache.

    Arguments: count, q, q_stride, out, out_stride, base, page_bytes, n_head, n_head_kv, head_dim, positions, slots,
    page_tables, max_pages, scale_bits, window (0: none), softcap_bits (0: none), scratch, threads, thread_bytes,
    partials, n_segments, key_bytes, value_bytes, key_rotation, value_rotation, tile. `tile` is the address of the
    kernel attention_tile of the cache's type, the four before it are KVLayout's, and the five before those are as
    AttentionScratch says (threads = scratch + threads_offset). Out must not be q.

    Threads take items as they get free: (tile, kv head), or (tile, segment, some kv heads) when the step has at most
    FEW_ROWS rows; the states of these are kept at `partials`, and who completes the last segment merges them.
    """
    n, n_head_kv, window, counter = ld_i64(arg(row, 0)), arg(row, 8), arg(row, 15), arg(row, 17)
    job, group = arg(row, 18) + thread * arg(row, 19), arg(row, 7) // n_head_kv
    item, before, start, done = atomic_add(counter, 1), int64(0), int64(0), counter + DONE
    while start < n:
        stop = _tile_end(start, n, (TILE_QUERIES + group - 1) // group, arg(row, 10), arg(row, 11))
        position = int64(ld_i32(arg(row, 10) + 4 * start))
        first = _first_seen(position, window) // SEGMENT
        end = (position + stop - start - 1) // SEGMENT + 1
        n_parts, n_heads = int64(1), int64(1)
        if n <= FEW_ROWS:
            n_parts, n_heads = end - first, _heads_at_once(n_head_kv, (stop - start) * group, end - first, n_threads)
        n_units = (n_head_kv + n_heads - 1) // n_heads
        while item < before + n_parts * n_units:
            unit = (item - before) // n_parts
            part = first + (item - before) % n_parts
            st_i64(job + KV_HEAD, unit * n_heads)
            st_i64(job + N_HEADS, smaller(n_heads, n_head_kv - unit * n_heads))
            st_i64(job + FIRST_ROW, start)
            st_i64(job + N_ROWS, stop - start)
            st_i64(job + FIRST_SEGMENT, part)
            st_i64(job + END_SEGMENT, part + 1 if n_parts > 1 else end)
            call_kernel(arg(row, 26), row, job, n_parts)
            if n_parts > 1 and atomic_add(done + 8 * unit, 1) == n_parts - 1:
                st_i64(done + 8 * unit, 0)
                _merge(row, job)
            item = atomic_add(counter, 1)
        before += n_parts * n_units
        done += 8 * n_units
        start = stop
    if atomic_add(counter + 64, 1) == n_threads - 1:
        st_i64(counter, 0)
        st_i64(counter + 64, 0)


@subroutine()
def _lay_out(row: int, job: int) -> None:
    """The rest of the job's words."""
    head_dim = arg(row, 9)
    n_of_head = ld_i64(job + N_ROWS) * (arg(row, 7) // arg(row, 8))
    n_queries, n_batches = n_of_head * ld_i64(job + N_HEADS), (n_of_head + BATCH - 1) // BATCH
    state_bytes = 4 * (HEADER + round_up(head_dim, 32))
    work = job + JOB_BYTES
    units = work + larger(8 * round_up(head_dim, 32), 128 * BATCH)
    packed = units + UNIT_BYTES * n_queries
    scores = packed + 4 * round_up(head_dim, 32) * n_queries
    partial = scores + 4 * SCORE_STRIDE * n_queries
    st_i64(job + N_QUERIES, n_queries)
    st_i64(job + UNITS, units)
    st_i64(job + END_UNIT, units + UNIT_BYTES * n_batches * ld_i64(job + N_HEADS))
    st_i64(job + PACKED, packed)
    st_i64(job + SCORES, scores)
    st_i64(job + PARTIAL, partial)
    st_i64(job + STATES, partial + n_queries * state_bytes)
    st_i64(job + WORK, work)


@subroutine()
def _plan(row: int, job: int) -> None:
    """The units of a job. Queries are numbered by kv head, row, head of the group."""
    group = arg(row, 7) // arg(row, 8)
    n_of_head = ld_i64(job + N_ROWS) * group
    n_batches = (n_of_head + BATCH - 1) // BATCH
    for u in range(n_batches * ld_i64(job + N_HEADS)):
        k, b, unit = u // n_batches, u % n_batches, ld_i64(job + UNITS) + UNIT_BYTES * u
        first, end = share(n_of_head, b, n_batches), share(n_of_head, b + 1, n_batches)
        kv_head = ld_i64(job + KV_HEAD) + k
        st_i64(unit + SIZE, end - first)
        st_i64(unit + QUERY, k * n_of_head + first)
        st_i64(unit + KEYS, kv_head * arg(row, 22))
        st_i64(unit + VALUES, arg(row, 8) * arg(row, 22) + kv_head * arg(row, 23))
        st_i64(unit + LOW_ROW, first // group)
        st_i64(unit + HIGH_ROW, (end - 1) // group)


@subroutine()
def _pack_unit(row, job, unit, pack_query):  # type: ignore[no-untyped-def]
    """Packs the queries of a unit."""
    head_dim, group = arg(row, 9), arg(row, 7) // arg(row, 8)
    n, n_of_head = ld_i64(unit + SIZE), ld_i64(job + N_ROWS) * group
    to = ld_i64(job + PACKED) + 4 * round_up(head_dim, 32) * ld_i64(unit + QUERY)
    scale = f32_bits(arg(row, 14))
    if f32_bits(arg(row, 16)) <= float32(0.0):
        scale = scale * float32(LOG2_E)
    for t in range(n):
        j = ld_i64(unit + QUERY) + t
        i, head = j % n_of_head // group, (ld_i64(job + KV_HEAD) + j // n_of_head) * group + j % group
        q = arg(row, 1) + (ld_i64(job + FIRST_ROW) + i) * arg(row, 2) + 4 * head * head_dim
        pack_query(q, to, n, t, head_dim, scale, arg(row, 24), ld_i64(job + WORK))


@subroutine()
def _score_pages(row, job, pages, start, end, stop, score):  # type: ignore[no-untyped-def]
    """Scores with the pages start .. end - 1 of a segment, whose numbers are at `pages`; stop is the end position."""
    base, page_bytes, head_dim = arg(row, 5), arg(row, 6), arg(row, 9)
    units, end_unit, scores = ld_i64(job + UNITS), ld_i64(job + END_UNIT), ld_i64(job + SCORES)
    first_page = base + ld_i32(pages + 4 * start) * page_bytes
    at = first_page
    for page in range(start, end):
        is_last, p = page + 1 == end, page * PAGE_POSITIONS
        following = first_page if is_last else base + ld_i32(pages + 4 * page + 4) * page_bytes
        next_offset = ld_i64(units + VALUES) if is_last else ld_i64(units + KEYS)
        for unit in range(units, end_unit, UNIT_BYTES):
            j, offset = ld_i64(unit + QUERY), ld_i64(unit + KEYS)
            is_end = unit + UNIT_BYTES >= end_unit or ld_i64(end_unit - UNIT_BYTES + KEYS) == offset
            ahead = following + next_offset if is_end else at + offset + arg(row, 22)
            packed = ld_i64(job + PACKED) + 4 * round_up(head_dim, 32) * j
            to = scores + 4 * (SCORE_STRIDE * j + p)
            score(ld_i64(unit + SIZE), packed, at + offset, head_dim, stop - p, to, ahead)
        at = following


@subroutine(types.UniTuple(int64, 4))
def _span(row: int, job: int, unit: int, i: int, p: int, position: int) -> tuple[int, int, int, int]:
    """The i-th span of a unit's work on the page at position p of a segment: number of queries, the first, positions.

    Spans 0 .. size - 1 are what single queries see before what all see, span `size` is that, the others come after it.
    """
    size, j, n_of_head = ld_i64(unit + SIZE), ld_i64(unit + QUERY), ld_i64(job + N_ROWS) * (arg(row, 7) // arg(row, 8))
    all_begin = _first_seen(position + ld_i64(unit + HIGH_ROW), arg(row, 15))
    all_end = larger(position + ld_i64(unit + LOW_ROW) + 1, all_begin)
    begin, end = larger(all_begin, p), smaller(all_end, p + PAGE_POSITIONS)
    if i == size:
        return size, j, begin, end
    query = j + i % (size + 1)
    own = position + query % n_of_head // (n_of_head // ld_i64(job + N_ROWS))
    if i < size:
        return 1, query, larger(_first_seen(own, arg(row, 15)), p), smaller(smaller(begin, own + 1), p + PAGE_POSITIONS)
    return 1, query, larger(all_end, p), smaller(own + 1, p + PAGE_POSITIONS)


@subroutine(inlined=True)
def _weigh_page(row, job, unit, values, p, position, ahead, states, weigh):  # type: ignore[no-untyped-def]
    """Adds the values of a page, at position p of a segment, to a unit's states; row 0 is at `position` of the segment.

    Positions that all rows of the unit see are taken together, those before and after row by row: what is hidden from
    a row, be it infinite, never meets its weights.
    """
    size, low, high = ld_i64(unit + SIZE), position + ld_i64(unit + LOW_ROW), position + ld_i64(unit + HIGH_ROW)
    is_even = low == high or (low + 1 >= p + PAGE_POSITIONS and _first_seen(high, arg(row, 15)) <= p)
    state_bytes = 4 * (HEADER + round_up(arg(row, 9), 32))
    for i in range(size if is_even else 0, size + 1 if is_even else 2 * size + 1):
        n, query, begin, end = _span(row, job, unit, i, p, position)
        if begin < end:
            weights = ld_i64(job + SCORES) + 4 * (SCORE_STRIDE * query + p)
            out = states + query * state_bytes + 4 * HEADER
            work = ld_i64(job + WORK)
            weigh(n, weights, values, arg(row, 9), begin - p, end - p, out, state_bytes, ahead, work)


@subroutine()
def _weigh_pages(row, job, pages, start, end, position, states, weigh):  # type: ignore[no-untyped-def]
    """Adds the values of pages start .. end - 1 of a segment to the states of all queries."""
    base, page_bytes = arg(row, 5), arg(row, 6)
    units, end_unit = ld_i64(job + UNITS), ld_i64(job + END_UNIT)
    at = base + ld_i32(pages + 4 * start) * page_bytes
    for page in range(start, end):
        following = at if page + 1 == end else base + ld_i32(pages + 4 * page + 4) * page_bytes
        for unit in range(units, end_unit, UNIT_BYTES):
            offset = ld_i64(unit + VALUES)
            is_end = unit + UNIT_BYTES >= end_unit or ld_i64(end_unit - UNIT_BYTES + VALUES) == offset
            ahead = following + ld_i64(units + VALUES) if is_end else at + offset + arg(row, 23)
            _weigh_page(row, job, unit, at + offset, page * PAGE_POSITIONS, position, ahead, states, weigh)
        at = following


@subroutine()
def _soften_all(row: int, job: int, begin: int, end: int, position: int, states: int) -> None:
    """Scores of positions begin .. end - 1 of a segment to weights, for all queries; begins their states."""
    group, width = arg(row, 7) // arg(row, 8), round_up(arg(row, 9), 32)
    n_of_head, cap = ld_i64(job + N_ROWS) * group, f32_bits(arg(row, 16))
    for j in range(ld_i64(job + N_QUERIES)):
        own, state = position + j % n_of_head // group, states + j * 4 * (HEADER + width)
        scores = ld_i64(job + SCORES) + 4 * SCORE_STRIDE * j
        first = _first_seen(own, arg(row, 15))
        soften(scores, begin // 16 * 16, round_up(end, 16), first, own + 1, cap, state)
        empty(state, width)


@subroutine()
def _attend(row, job, segment, states, score, weigh):  # type: ignore[no-untyped-def]
    """The states of all queries of a job over one segment."""
    start = ld_i64(job + FIRST_ROW)
    position = ld_i32(arg(row, 10) + 4 * start) - segment * SEGMENT
    begin, end = _first_seen(position, arg(row, 15)), smaller(position + ld_i64(job + N_ROWS), SEGMENT)
    pages = arg(row, 12) + 4 * (arg(row, 13) * ld_i32(arg(row, 11) + 4 * start) + SEGMENT // PAGE_POSITIONS * segment)
    start_page, end_page = begin // PAGE_POSITIONS, (end - 1) // PAGE_POSITIONS + 1
    _score_pages(row, job, pages, start_page, end_page, end, score)
    _soften_all(row, job, begin, end, position, states)
    _weigh_pages(row, job, pages, start_page, end_page, position, states, weigh)


@subroutine()
def _keep_or_finish(row: int, job: int, n_parts: int) -> None:
    """Results of the job's queries; where the job is one segment of several, their states go to where they are kept."""
    group, width = arg(row, 7) // arg(row, 8), round_up(arg(row, 9), 32)
    n_of_head, head_0 = ld_i64(job + N_ROWS) * group, ld_i64(job + KV_HEAD) * group
    for j in range(ld_i64(job + N_QUERIES)):
        i = ld_i64(job + FIRST_ROW) + j % n_of_head // group
        head, state = head_0 + j // n_of_head * group + j % group, ld_i64(job + STATES) + j * 4 * (HEADER + width)
        if n_parts > 1:
            copy_state(state, _kept(row, i, ld_i64(job + FIRST_SEGMENT), head), width)
        else:
            _put_out(row, state, i, head)


# Replaced in each type's copy of the kernel below.
pack_query, score, weigh = pack, score_f32, weigh_f32


def _attention_tile(row: int, job: int, n_parts: int) -> None:
    """Attention of one tile to some segments of some kv heads: what `attention` calls for an item, by address.

    `job` is the address of the int64 words first kv head, number of kv heads, first row, number of rows, first segment,
    end segment; memory for work follows. One thread does all. With n_parts > 1 the states of the one segment are kept.
    """
    _lay_out(row, job)
    _plan(row, job)
    for unit in range(ld_i64(job + UNITS), ld_i64(job + END_UNIT), UNIT_BYTES):
        _pack_unit(row, job, unit, pack_query)
    states, partial = ld_i64(job + STATES), ld_i64(job + PARTIAL)
    width = round_up(arg(row, 9), 32)
    for segment in range(ld_i64(job + FIRST_SEGMENT), ld_i64(job + END_SEGMENT)):
        is_first = segment == ld_i64(job + FIRST_SEGMENT)
        _attend(row, job, segment, states if is_first else partial, score, weigh)
        if not is_first:
            for k in range(0, ld_i64(job + N_QUERIES) * 4 * (HEADER + width), 4 * (HEADER + width)):
                combine(states + k, partial + k, width)
    _keep_or_finish(row, job, n_parts)


_F32 = {"cost": 8, "pack_query": pack, "score": score_f32, "weigh": weigh_f32}
_F16 = {"cost": 8, "pack_query": pack, "score": score_f16, "weigh": weigh_f16}
_Q8_0 = {"cost": 8, "pack_query": pack_q8_0, "score": score_q8_0, "weigh": weigh_q8_0}
_Q4_0 = {"cost": 8, "pack_query": pack_q4_0, "score": score_q4_0, "weigh": weigh_q4_0}

attention_tile_f32 = specialised(_attention_tile, __name__, "attention_tile_f32", **_F32)
attention_tile_f16 = specialised(_attention_tile, __name__, "attention_tile_f16", **_F16)
attention_tile_q8_0 = specialised(_attention_tile, __name__, "attention_tile_q8_0", **_Q8_0)
attention_tile_q4_0 = specialised(_attention_tile, __name__, "attention_tile_q4_0", **_Q4_0)

ATTENTION_TILE: dict[str, Kernel] = {
    "f32": attention_tile_f32,
    "f16": attention_tile_f16,
    "q8_0": attention_tile_q8_0,
    "q4_0": attention_tile_q4_0,
}
"""The kernel of each type of the cache."""

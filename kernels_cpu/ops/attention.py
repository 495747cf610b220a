"""Causal attention over the paged KV cache: one arithmetic for a prompt's rows and for a single token.

The positions of a sequence are cut into segments of 256. Within a segment, for a query q (a row and a head):

    s[p] = sum over d ascending of (q[d] scale) k[p][d]; soft-capped; -inf where the row may not look
    m = max s;  w[p] = exp(s[p] - m);  l = sum w, in 16 lanes;  o[c] = sum over p ascending of w[p] v[p][c]

and segments are combined in ascending order, (M, L, O) beginning at (-1e30, 0, 0):

    M' = max(M, m);  L = L exp(M - M') + l exp(m - M');  O = O exp(M - M') + o exp(m - M');  finally out = O / L

All in float32, K and V in f16. A position that is hidden from a row adds exact zeros. So it does not matter for a
row's result which other rows share its tile, in how many steps the sequence came, or whether its segments are computed
by one thread (many rows: a prompt) or by several (few rows: decoding, where a long context must keep all threads busy).

A tile is a run of rows of one sequence at consecutive positions. Its queries are its rows times the heads that share a
kv head; they are worked through in batches that fit the registers, so that K and V are read and widened once for a
batch, and from the cache for all batches but the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from numba import int64, njit

from kernels_cpu.compile import kernel
from kernels_cpu.graph import PAGE_POSITIONS
from kernels_cpu.ops import arg, round_up, share
from kernels_cpu.ops.attention_parts import BATCH, HEADER, SEGMENT, clear, combine, finish, pack, score, soften, weigh
from kernels_cpu.simd import f32_bits, larger, ld_i32, ld_i64, smaller, st_i64
from kernels_cpu.sync import atomic_add, call_kernel

FEW_ROWS = 8
"""Up to so many rows in a step, a segment is an item of its own; beyond, an item has all segments of its tile."""

TILE_QUERIES = 24
"""A tile has as many rows as make this many queries, or a few more: enough to hide the time to read K and V."""

ITEM_QUERIES = 48
"""An item of one segment has as many kv heads as make at most this many queries: longer runs of memory to read."""

COUNTER_BYTES, JOB_BYTES, UNIT_BYTES = 128, 128, 32


def _rounded(n: int, unit: int) -> int:
    return -(-n // unit) * unit


@dataclass(frozen=True)
class AttentionScratch:
    """Sizes of the memory in which attention keeps what is not finished: zeros at the start, 64-byte aligned.

    It is laid out as: a counter of items (COUNTER_BYTES), `thread_bytes` for each thread, then at `partials_offset` the
    states of FEW_ROWS rows, `n_segments` segments and n_head heads. Layers may share it, even of different shapes.
    A thread's part is laid out as: the job, its units (UNIT_BYTES a query), packed queries, scores, states of one
    segment, states of all.
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
        return 4 * (HEADER + _rounded(self.head_dim, 16))

    @property
    def thread_bytes(self) -> int:
        n_queries = max(ITEM_QUERIES, _rounded(TILE_QUERIES, self.n_head // self.n_head_kv))
        packed = _rounded(4 * n_queries * self.head_dim, 128)
        return JOB_BYTES + packed + n_queries * (UNIT_BYTES + 4 * SEGMENT + 2 * self.state_bytes)

    @property
    def partials_offset(self) -> int:
        return COUNTER_BYTES + self.n_threads * self.thread_bytes

    @property
    def n_bytes(self) -> int:
        n_states = FEW_ROWS * self.n_segments * self.n_head
        return self.partials_offset + n_states * self.state_bytes


@njit
def _tile_end(start: int, n: int, limit: int, positions: int, slots: int) -> int:
    """End of the run of at most `limit` rows from `start` on, of one slot and at consecutive positions."""
    end, limit = start + 1, smaller(n, start + limit)
    slot, position = ld_i32(slots + 4 * start), ld_i32(positions + 4 * start) - start
    while end < limit and ld_i32(slots + 4 * end) == slot and ld_i32(positions + 4 * end) == position + end:
        end += 1
    return end


@njit
def _heads_at_once(n_head_kv: int, n_queries: int, n_segments: int, n_threads: int) -> int:
    """How many kv heads, of n_queries each, make an item of one segment: one where there are few segments to share."""
    if n_segments < 2 * n_threads:
        return 1
    return smaller(larger(ITEM_QUERIES // n_queries, 1), n_head_kv)


@kernel
def attention_partial(row: int, thread: int, n_threads: int) -> None:
    """Attention of the step's rows, whose keys and values are in the cache; finished unless the rows are few.

    Arguments: count, q, q_stride, out, out_stride, base, page_bytes, n_head, n_head_kv, head_dim, positions, slots,
    page_tables, max_pages, scale_bits, window (0: none), softcap_bits (0: none), scratch, thread_bytes, partials,
    n_segments, tile. `tile` is the address of the kernel attention_tile; the four before it are as AttentionScratch
    says (partials = scratch + partials_offset). Out must not be q.
    A barrier and attention_merge, with the same arguments, must follow.

    Threads take items as they get free: (tile, kv head), or (tile, segment, some kv heads) when the step has at most
    FEW_ROWS rows; the states of these go to `partials`.
    """
    n, n_head_kv, window, counter = ld_i64(arg(row, 0)), arg(row, 8), arg(row, 15), arg(row, 17)
    job, group = counter + COUNTER_BYTES + thread * arg(row, 18), arg(row, 7) // n_head_kv
    item, before, start = atomic_add(counter, 1), int64(0), int64(0)
    while start < n:
        stop = _tile_end(start, n, (TILE_QUERIES + group - 1) // group, arg(row, 10), arg(row, 11))
        position = ld_i32(arg(row, 10) + 4 * start)
        first = larger(position - window + 1, 0) // SEGMENT if window > 0 else int64(0)
        end = (position + stop - start - 1) // SEGMENT + 1
        n_parts, n_heads = int64(1), int64(1)
        if n <= FEW_ROWS:
            n_parts, n_heads = end - first, _heads_at_once(n_head_kv, (stop - start) * group, end - first, n_threads)
        n_items = n_parts * ((n_head_kv + n_heads - 1) // n_heads)
        while item < before + n_items:
            kv_head = (item - before) // n_parts * n_heads
            part = first + (item - before) % n_parts
            st_i64(job, kv_head)
            st_i64(job + 8, smaller(n_heads, n_head_kv - kv_head))
            st_i64(job + 16, start)
            st_i64(job + 24, stop - start)
            st_i64(job + 32, part)
            st_i64(job + 40, part + 1 if n <= FEW_ROWS else end)
            call_kernel(arg(row, 21), row, job, n_threads)
            item = atomic_add(counter, 1)
        before += n_items
        start = stop


@partial(kernel, cost=8)
def attention_tile(row: int, job: int, n_threads: int) -> None:
    """Attention of one tile to some segments of some kv heads: what attention_partial calls for an item, by address.

    `job` is the address of the int64 words first kv head, number of kv heads, first row, number of rows, first segment,
    end segment; memory for work follows. One thread does all. Queries are numbered by kv head, row, head of the group.
    A unit is a batch of them: number of queries, first query, offset of their keys and of their values in a page.
    """
    page_bytes, n_head, head_dim, window = arg(row, 6), arg(row, 7), arg(row, 9), arg(row, 15)
    group, width, state_bytes = n_head // arg(row, 8), round_up(head_dim, 16), 4 * (HEADER + round_up(head_dim, 16))
    kv_head, start, n_rows = ld_i64(job), ld_i64(job + 16), ld_i64(job + 24)
    n_of_head, first_head = n_rows * group, kv_head * group
    n_queries, n_batches = n_of_head * ld_i64(job + 8), (n_of_head + BATCH - 1) // BATCH
    units = job + JOB_BYTES
    end_unit = units + UNIT_BYTES * n_batches * ld_i64(job + 8)
    packed = units + UNIT_BYTES * n_queries
    scores = packed + round_up(4 * n_queries * head_dim, 128)
    partial = scores + 4 * SEGMENT * n_queries
    states = partial + n_queries * state_bytes
    keys_bytes, values_bytes = 2 * PAGE_POSITIONS * head_dim, 2 * PAGE_POSITIONS * width
    for u in range(n_batches * ld_i64(job + 8)):
        k, b, unit = u // n_batches, u % n_batches, units + UNIT_BYTES * u
        first = share(n_of_head, b, n_batches)
        n = share(n_of_head, b + 1, n_batches) - first
        st_i64(unit, n)
        st_i64(unit + 8, k * n_of_head + first)
        st_i64(unit + 16, (kv_head + k) * keys_bytes)
        st_i64(unit + 24, arg(row, 8) * keys_bytes + (kv_head + k) * values_bytes)
        for t in range(n):
            i, head = (first + t) // group, first_head + k * group + (first + t) % group
            q = arg(row, 1) + (start + i) * arg(row, 2) + 4 * head * head_dim
            to = packed + 4 * ((k * n_of_head + first) * head_dim + t)
            pack(q, to, 4 * n, head_dim, f32_bits(arg(row, 14)))
    for j in range(n_queries):
        clear(states + j * state_bytes, width)
    table = arg(row, 12) + 4 * arg(row, 13) * ld_i32(arg(row, 11) + 4 * start)
    for segment in range(ld_i64(job + 32), ld_i64(job + 40)):
        position = ld_i32(arg(row, 10) + 4 * start) - segment * SEGMENT
        begin = larger(position - window + 1, 0) if window > 0 else int64(0)
        end = smaller(position + n_rows, SEGMENT)
        pages = table + 4 * (SEGMENT // PAGE_POSITIONS) * segment
        start_page, end_page = begin // PAGE_POSITIONS, (end - 1) // PAGE_POSITIONS + 1
        first_page = arg(row, 5) + ld_i32(pages + 4 * start_page) * page_bytes
        at = first_page
        for page in range(start_page, end_page):
            last = page + 1 == end_page
            following = first_page if last else arg(row, 5) + ld_i32(pages + 4 * page + 4) * page_bytes
            for unit in range(units, end_unit, UNIT_BYTES):
                n, j, offset = ld_i64(unit), ld_i64(unit + 8), ld_i64(unit + 16)
                ahead = at + offset + keys_bytes
                if unit + UNIT_BYTES * n_batches >= end_unit:
                    ahead = following + ld_i64(units + 24 if last else units + 16)
                p = page * PAGE_POSITIONS
                to = scores + 4 * (SEGMENT * j + p)
                score(n, packed + 4 * j * head_dim, at + offset, head_dim, end - p, to, ahead)
            at = following
        for j in range(n_queries):
            clear(partial + j * state_bytes, width)
            p = position + j % n_of_head // group
            visible = p - window + 1 if window > 0 else int64(0)
            to = scores + 4 * SEGMENT * j
            soften(to, begin // 16 * 16, end, visible, p + 1, f32_bits(arg(row, 16)), partial + j * state_bytes)
        for page in range(start_page, end_page):
            following = at if page + 1 == end_page else arg(row, 5) + ld_i32(pages + 4 * page + 4) * page_bytes
            p = page * PAGE_POSITIONS
            i, stop = larger(begin - p, 0), smaller(end - p, PAGE_POSITIONS)
            for unit in range(units, end_unit, UNIT_BYTES):
                n, j, offset = ld_i64(unit), ld_i64(unit + 8), ld_i64(unit + 24)
                ahead = at + offset + values_bytes
                if unit + UNIT_BYTES * n_batches >= end_unit:
                    ahead = following + ld_i64(units + 24)
                to = partial + j * state_bytes + 4 * HEADER
                weigh(n, scores + 4 * (SEGMENT * j + p), at + offset, width, i, stop, to, state_bytes, ahead)
            at = following
        for j in range(n_queries):
            combine(states + j * state_bytes, partial + j * state_bytes, width)
    for j in range(n_queries):
        i = start + j % n_of_head // group
        head, state = first_head + j // n_of_head * group + j % group, states + j * state_bytes
        if ld_i64(arg(row, 0)) <= FEW_ROWS:
            kept = arg(row, 19) + ((i * arg(row, 20) + ld_i64(job + 32)) * n_head + head) * state_bytes
            clear(kept, width)
            combine(kept, state, width)
        else:
            finish(state, arg(row, 3) + i * arg(row, 4) + 4 * head * head_dim, head_dim)


@kernel
def attention_merge(row: int, thread: int, n_threads: int) -> None:
    """Second half of attention_partial, with its arguments: combines the segments of few rows, split by (row, head)."""
    n, n_head, head_dim, window = ld_i64(arg(row, 0)), arg(row, 7), arg(row, 9), arg(row, 15)
    state = arg(row, 17) + COUNTER_BYTES + thread * arg(row, 18) + JOB_BYTES
    width, state_bytes = round_up(head_dim, 16), 4 * (HEADER + round_up(head_dim, 16))
    if thread == 0:
        st_i64(arg(row, 17), 0)
    if n > FEW_ROWS:
        return
    for item in range(share(n * n_head, thread, n_threads), share(n * n_head, thread + 1, n_threads)):
        i, head = item // n_head, item % n_head
        p = ld_i32(arg(row, 10) + 4 * i)
        first = larger(p - window + 1, 0) // SEGMENT if window > 0 else int64(0)
        clear(state, width)
        for segment in range(first, p // SEGMENT + 1):
            combine(state, arg(row, 19) + ((i * arg(row, 20) + segment) * n_head + head) * state_bytes, width)
        finish(state, arg(row, 3) + i * arg(row, 4) + 4 * head * head_dim, head_dim)

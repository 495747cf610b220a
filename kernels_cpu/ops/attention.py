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
kv head (query j is head j % group of row j // group); they are worked through in batches that fit the registers, so
that K and V are read and widened once for a batch, and from the L2 cache for all batches but the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import int64, njit

from kernels_cpu.compile import kernel
from kernels_cpu.graph import PAGE_POSITIONS
from kernels_cpu.ops import arg, share
from kernels_cpu.ops.attention_parts import BATCH, HEADER, SEGMENT, clear, combine, finish, pack, score, soften, weigh
from kernels_cpu.ops.kv import kv_head_bytes, padded_head
from kernels_cpu.simd import f32_bits, larger, ld_i32, ld_i64, smaller, st_i64
from kernels_cpu.sync import atomic_add, call_kernel

FEW_ROWS = 8
"""Up to so many rows in a step, a segment is an item of its own; beyond, an item has all segments of its tile."""

TILE_QUERIES = 24
"""A tile has as many rows as make this many queries, or a few more: enough to hide the time to read K and V."""

COUNTER_BYTES, JOB_BYTES = 128, 128


@njit(inline="always")
def _tile_rows(n_head: int, n_head_kv: int) -> int:
    group = n_head // n_head_kv
    return (TILE_QUERIES + group - 1) // group


@njit(inline="always")
def _packed_bytes(n_queries: int, head_dim: int) -> int:
    """Bytes of a tile's packed queries, rounded up to a multiple of 128."""
    return (4 * n_queries * head_dim + 127) // 128 * 128


@njit(inline="always")
def _state_bytes(head_dim: int) -> int:
    return 4 * (HEADER + padded_head(head_dim))


@dataclass(frozen=True)
class AttentionScratch:
    """Sizes of the memory in which attention keeps what is not finished: zeros at the start, 64-byte aligned.

    It is laid out as: a counter of items (COUNTER_BYTES), `thread_bytes` for each thread, then at `partials_offset` the
    states of FEW_ROWS rows, `n_segments` segments and n_head heads. Layers may share it, even of different shapes.
    A thread's part is laid out as: the job, packed queries, scores and states of a batch, states of a tile.
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
    def thread_bytes(self) -> int:
        n_queries = _tile_rows.py_func(self.n_head, self.n_head_kv) * (self.n_head // self.n_head_kv)
        n_states = BATCH + n_queries
        packed = _packed_bytes.py_func(n_queries, self.head_dim)
        return int(JOB_BYTES + packed + 4 * BATCH * SEGMENT + n_states * _state_bytes.py_func(self.head_dim))

    @property
    def partials_offset(self) -> int:
        return COUNTER_BYTES + self.n_threads * self.thread_bytes

    @property
    def n_bytes(self) -> int:
        n_states = FEW_ROWS * self.n_segments * self.n_head
        return self.partials_offset + n_states * int(_state_bytes.py_func(self.head_dim))


@njit
def _tile_end(start: int, n: int, limit: int, positions: int, slots: int) -> int:
    """End of the run of at most `limit` rows from `start` on, of one slot and at consecutive positions."""
    end, limit = start + 1, smaller(n, start + limit)
    slot, position = ld_i32(slots + 4 * start), ld_i32(positions + 4 * start) - start
    while end < limit and ld_i32(slots + 4 * end) == slot and ld_i32(positions + 4 * end) == position + end:
        end += 1
    return end


@kernel
def attention_partial(row: int, thread: int, n_threads: int) -> None:
    """Attention of the step's rows, whose keys and values are in the cache; finished unless the rows are few.

    Arguments: count, q, q_stride, out, out_stride, base, page_bytes, n_head, n_head_kv, head_dim, positions, slots,
    page_tables, max_pages, scale_bits, window (0: none), softcap_bits (0: none), scratch, thread_bytes, partials,
    n_segments, tile. `tile` is the address of the kernel attention_tile; the four before it are as AttentionScratch
    says (partials = scratch + partials_offset). Out must not be q.
    A barrier and attention_merge, with the same arguments, must follow.

    Threads take items as they get free: (tile, kv head), or (tile, kv head, segment) when the step has at most FEW_ROWS
    rows; the states of these go to `partials`.
    """
    n, n_head_kv, window, counter = ld_i64(arg(row, 0)), arg(row, 8), arg(row, 15), arg(row, 17)
    job = counter + COUNTER_BYTES + thread * arg(row, 18)
    item, before, start = atomic_add(counter, 1), int64(0), int64(0)
    while start < n:
        stop = _tile_end(start, n, _tile_rows(arg(row, 7), n_head_kv), arg(row, 10), arg(row, 11))
        position = ld_i32(arg(row, 10) + 4 * start)
        first = larger(position - window + 1, 0) // SEGMENT if window > 0 else int64(0)
        end = (position + stop - start - 1) // SEGMENT + 1
        n_parts = end - first if n <= FEW_ROWS else int64(1)
        while item < before + n_head_kv * n_parts:
            kv_head = (item - before) // n_parts
            part = first + item - before - kv_head * n_parts
            st_i64(job, kv_head)
            st_i64(job + 8, start)
            st_i64(job + 16, stop - start)
            st_i64(job + 24, part)
            st_i64(job + 32, part + 1 if n <= FEW_ROWS else end)
            call_kernel(arg(row, 21), row, job, n_threads)
            item = atomic_add(counter, 1)
        before += n_head_kv * n_parts
        start = stop


@kernel
def attention_tile(row: int, job: int, n_threads: int) -> None:
    """Attention of one tile to some segments of a kv head: what attention_partial calls for an item, by address.

    `job` is the address of the int64 words kv_head, first row, number of rows, first segment, end segment; memory for
    work follows. One thread does all.
    """
    page_bytes, n_head, head_dim, window = arg(row, 6), arg(row, 7), arg(row, 9), arg(row, 15)
    group, width, state_bytes = n_head // arg(row, 8), padded_head(head_dim), _state_bytes(head_dim)
    kv_head, start, n_rows = ld_i64(job), ld_i64(job + 8), ld_i64(job + 16)
    n_queries, first_head = n_rows * group, kv_head * group
    n_batches = (n_queries + BATCH - 1) // BATCH
    packed = job + JOB_BYTES
    scores = packed + _packed_bytes(n_queries, head_dim)
    partial = scores + 4 * BATCH * SEGMENT
    states = partial + BATCH * state_bytes
    queries = arg(row, 1) + start * arg(row, 2) + 4 * first_head * head_dim
    for j in range(n_queries):
        b = ((j + 1) * n_batches - 1) // n_queries
        first = share(n_queries, b, n_batches)
        n = share(n_queries, b + 1, n_batches) - first
        q = queries + j // group * arg(row, 2) + 4 * head_dim * (j % group)
        pack(q, packed + 4 * (first * head_dim + j - first), 4 * n, head_dim, f32_bits(arg(row, 14)))
        clear(states + j * state_bytes, width)
    table = arg(row, 12) + 4 * arg(row, 13) * ld_i32(arg(row, 11) + 4 * start)
    base, values = arg(row, 5) + kv_head * kv_head_bytes(head_dim), 2 * PAGE_POSITIONS * head_dim
    for segment in range(ld_i64(job + 24), ld_i64(job + 32)):
        position = ld_i32(arg(row, 10) + 4 * start) - segment * SEGMENT
        begin = larger(position - window + 1, 0) if window > 0 else int64(0)
        end = smaller(position + n_rows, SEGMENT)
        pages = table + 4 * (SEGMENT // PAGE_POSITIONS) * segment
        for b in range(n_batches):
            first = share(n_queries, b, n_batches)
            n = share(n_queries, b + 1, n_batches) - first
            start_page, end_page = begin // PAGE_POSITIONS, (end - 1) // PAGE_POSITIONS + 1
            kv = base + ld_i32(pages + 4 * start_page) * page_bytes
            first_values = kv + values
            for page in range(start_page, end_page):
                p = page * PAGE_POSITIONS
                ahead = base + ld_i32(pages + 4 * page + 4) * page_bytes if page + 1 < end_page else first_values
                score(n, packed + 4 * first * head_dim, kv, head_dim, end - p, scores + 4 * p, ahead)
                kv = ahead
            for t in range(n):
                last = position + (first + t) // group
                visible = last - window + 1 if window > 0 else int64(0)
                row_scores, state = scores + 4 * SEGMENT * t, partial + t * state_bytes
                clear(state, width)
                soften(row_scores, begin // 16 * 16, end, visible, last + 1, f32_bits(arg(row, 16)), state)
            kv = first_values
            for page in range(start_page, end_page):
                p = page * PAGE_POSITIONS
                ahead = base + ld_i32(pages + 4 * page + 4) * page_bytes + values if page + 1 < end_page else kv
                i, stop = larger(begin - p, 0), smaller(end - p, PAGE_POSITIONS)
                weigh(n, scores + 4 * p, kv, width, i, stop, partial + 4 * HEADER, state_bytes, ahead)
                kv = ahead
            for t in range(n):
                combine(states + (first + t) * state_bytes, partial + t * state_bytes, width)
    for j in range(n_queries):
        i, head = start + j // group, first_head + j % group
        state = states + j * state_bytes
        if ld_i64(arg(row, 0)) <= FEW_ROWS:
            kept = arg(row, 19) + ((i * arg(row, 20) + ld_i64(job + 24)) * n_head + head) * state_bytes
            clear(kept, width)
            combine(kept, state, width)
        else:
            finish(state, arg(row, 3) + i * arg(row, 4) + 4 * head * head_dim, head_dim)


@kernel
def attention_merge(row: int, thread: int, n_threads: int) -> None:
    """Second half of attention_partial, with its arguments: combines the segments of few rows, split by (row, head)."""
    n, n_head, head_dim, window = ld_i64(arg(row, 0)), arg(row, 7), arg(row, 9), arg(row, 15)
    state = arg(row, 17) + COUNTER_BYTES + thread * arg(row, 18) + JOB_BYTES
    width, state_bytes = padded_head(head_dim), _state_bytes(head_dim)
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

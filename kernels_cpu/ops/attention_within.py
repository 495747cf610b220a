"""Attention of the rows of a step to all rows of their sequence, before and after, without a cache.

The arithmetic is that of attention.py with a cache of float32: segments of 256 positions at fixed places, combined in
ascending order. What a thread works on is a run of rows of one sequence and a head: it copies the head's keys and
values to pages of its own, in the layout of the cache, and takes as many queries at once as fit the registers. A row's
result depends on its sequence alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from numba import float32, int64

from kernels_cpu.compile import kernel
from kernels_cpu.graph import PAGE_POSITIONS
from kernels_cpu.ops import arg, round_up, share
from kernels_cpu.ops.attention_floats import pack, score_f32, weigh_f32
from kernels_cpu.ops.attention_parts import (
    BATCH,
    HEADER,
    LOG2_E,
    SCORE_STRIDE,
    SEGMENT,
    combine,
    empty,
    finish,
    soften,
)
from kernels_cpu.ops.scatter import scatter_f32
from kernels_cpu.simd import f32_bits, f32x16, larger, ld_f32, ld_i32, ld_i64, load, smaller, st_f32, st_i64, store
from kernels_cpu.subroutine import subroutine
from kernels_cpu.sync import atomic_add

ITEM_ROWS = 128
"""Rows for which a thread copies keys and values."""

COUNTER_BYTES = 128
"""The next item at 0, threads that found none at 64."""


def _rounded(n: int, unit: int) -> int:
    return -(-n // unit) * unit


@dataclass(frozen=True)
class WithinScratch:
    """Sizes of the memory that the kernel works in: zeros at the start, 64-byte aligned; layers may share it.

    It is laid out as: counters, then `thread_bytes` for each thread: packed queries, scores, states of one segment,
    states of all, pages.
    """

    n_threads: int
    n_positions: int
    head_dim: int

    @property
    def page_bytes(self) -> int:
        """Keys and values of one head at 32 positions."""
        return 4 * PAGE_POSITIONS * (self.head_dim + _rounded(self.head_dim, 16))

    @property
    def state_bytes(self) -> int:
        return 4 * (HEADER + _rounded(self.head_dim, 32))

    @property
    def thread_bytes(self) -> int:
        each = 4 * _rounded(self.head_dim, 32) + 4 * SCORE_STRIDE + 2 * self.state_bytes
        n_pages = _rounded(self.n_positions, PAGE_POSITIONS) // PAGE_POSITIONS
        return _rounded(BATCH * each, 64) + _rounded(n_pages * self.page_bytes, 128) + 64

    @property
    def n_bytes(self) -> int:
        return COUNTER_BYTES + self.n_threads * self.thread_bytes


@subroutine(int64)
def _sequence_end(start: int, n: int, slots: int) -> int:
    """End of the rows of the sequence that begins at row `start`."""
    end, slot = start + 1, ld_i32(slots + 4 * start)
    while end < n and ld_i32(slots + 4 * end) == slot:
        end += 1
    return end


@subroutine(int64, inlined=True)
def _first_seen(position: int, window: int) -> int:
    return larger(position - window // 2, 0) if window > 0 else int64(0)


@subroutine(int64, inlined=True)
def _end_seen(position: int, window: int, n: int) -> int:
    return smaller(position + window // 2 + 1, n) if window > 0 else n


@subroutine()
def _copy_position(k: int, v: int, page: int, p: int, head_dim: int) -> None:
    """A head's key and value, float32 [head_dim], to position p of a page: see kv.py for the layout of float32."""
    n_vector, width = head_dim // 16 * 16, round_up(head_dim, 16)
    values = page + 4 * PAGE_POSITIONS * head_dim
    for d in range(0, n_vector, 16):
        scatter_f32(page + 128 * d + 4 * p, 128, load(f32x16, k + 4 * d))
        first = d // 32 * 32
        place = 4 * (PAGE_POSITIONS * first + smaller(width - first, 32) * p + d - first)
        store(values + place, load(f32x16, v + 4 * d))
    for d in range(n_vector, head_dim):
        st_f32(page + 128 * d + 4 * p, ld_f32(k + 4 * d))
        first = d // 32 * 32
        st_f32(values + 4 * (PAGE_POSITIONS * first + smaller(width - first, 32) * p + d - first), ld_f32(v + 4 * d))


@subroutine()
def _copy_head(row: int, pages: int, page_bytes: int, start: int, begin: int, end: int, kv_head: int) -> None:
    """Positions begin .. end - 1 of a sequence, whose rows begin at `start`, to the thread's pages."""
    head_dim = arg(row, 11)
    for p in range(begin, end):
        k = arg(row, 3) + (start + p) * arg(row, 4) + 4 * kv_head * head_dim
        v = arg(row, 5) + (start + p) * arg(row, 6) + 4 * kv_head * head_dim
        _copy_position(k, v, pages + p // PAGE_POSITIONS * page_bytes, p % PAGE_POSITIONS, head_dim)


@subroutine()
def _segment(row: int, work: int, pages: int, n: int, segment: int, first: int, states: int, n_positions: int) -> None:
    """The states of n queries, of positions first, first + 1, ..., over one segment."""
    head_dim, window = arg(row, 11), arg(row, 14)
    width, offset = round_up(head_dim, 32), segment * SEGMENT
    page_bytes, state_bytes = 4 * PAGE_POSITIONS * (head_dim + round_up(head_dim, 16)), 4 * (HEADER + width)
    scores = work + 4 * BATCH * width
    begin = larger(_first_seen(first, window) - offset, 0)
    end = smaller(_end_seen(first + n - 1, window, n_positions) - offset, SEGMENT)
    for p in range(begin // PAGE_POSITIONS * PAGE_POSITIONS, end, PAGE_POSITIONS):
        page = pages + (offset + p) // PAGE_POSITIONS * page_bytes
        score_f32(n, work, page, head_dim, end - p, scores + 4 * p, page)
    for t in range(n):
        seen = _first_seen(first + t, window) - offset, _end_seen(first + t, window, n_positions) - offset
        state = states + t * state_bytes
        low, high = begin // 16 * 16, round_up(end, 16)
        soften(scores + 4 * SCORE_STRIDE * t, low, high, seen[0], seen[1], float32(0.0), state)
        empty(state, width)
    for p in range(begin // PAGE_POSITIONS * PAGE_POSITIONS, end, PAGE_POSITIONS):
        values = pages + (offset + p) // PAGE_POSITIONS * page_bytes + 4 * PAGE_POSITIONS * head_dim
        from_p, to_p, out = larger(begin - p, 0), smaller(end - p, PAGE_POSITIONS), states + 4 * HEADER
        weigh_f32(n, scores + 4 * p, values, head_dim, from_p, to_p, out, state_bytes, values, work)


@subroutine()
def _attend(row: int, work: int, pages: int, start: int, n_positions: int, first: int, n: int, head: int) -> None:
    """The results of n <= BATCH queries of a head, at positions first .. first + n - 1 of a sequence."""
    head_dim, window = arg(row, 11), arg(row, 14)
    width = round_up(head_dim, 32)
    state_bytes = 4 * (HEADER + width)
    partial = work + 4 * BATCH * (width + SCORE_STRIDE)
    states = partial + BATCH * state_bytes
    scale = f32_bits(arg(row, 13)) * float32(LOG2_E)
    for t in range(n):
        q = arg(row, 1) + (start + first + t) * arg(row, 2) + 4 * head * head_dim
        pack(q, work, n, t, head_dim, scale, 1, work)
    low = _first_seen(first, window) // SEGMENT
    for segment in range(low, (_end_seen(first + n - 1, window, n_positions) - 1) // SEGMENT + 1):
        _segment(row, work, pages, n, segment, first, states if segment == low else partial, n_positions)
        if segment > low:
            for t in range(n):
                combine(states + t * state_bytes, partial + t * state_bytes, width)
    for t in range(n):
        finish(
            states + t * state_bytes, arg(row, 7) + (start + first + t) * arg(row, 8) + 4 * head * head_dim, head_dim
        )


@subroutine()
def _attend_item(row: int, work: int, start: int, n_positions: int, head: int, first: int) -> None:
    """A head's results for the rows `first` .. first + ITEM_ROWS - 1 of a sequence, as far as there are so many."""
    head_dim, window, kv_head = arg(row, 11), arg(row, 14), head // (arg(row, 9) // arg(row, 10))
    width, end = round_up(head_dim, 32), smaller(first + ITEM_ROWS, n_positions)
    page_bytes = 4 * PAGE_POSITIONS * (head_dim + round_up(head_dim, 16))
    pages = work + round_up(BATCH * (4 * width + 4 * SCORE_STRIDE + 8 * (HEADER + width)), 64)
    begin = _first_seen(first, window)
    _copy_head(row, pages, page_bytes, start, begin, _end_seen(end - 1, window, n_positions), kv_head)
    n_batches = (end - first + BATCH - 1) // BATCH
    for i in range(n_batches):
        low, high = share(end - first, i, n_batches), share(end - first, i + 1, n_batches)
        _attend(row, work, pages, start, n_positions, first + low, high - low, head)


@partial(kernel, cost=8)
def attention_within(row: int, thread: int, n_threads: int) -> None:
    """Attention of the step's rows to the rows of their sequence.

    Arguments: count, q, q_stride, k, k_stride, v, v_stride, out, out_stride, n_head, n_head_kv, head_dim, slots,
    scale_bits, window (0: none), scratch, thread_bytes. A sequence is a run of rows of one slot. The last two are as
    WithinScratch says. Out must not be q, k or v.

    Threads take items as they get free: ITEM_ROWS rows of a sequence, and a head.
    """
    n, n_head, counter = ld_i64(arg(row, 0)), arg(row, 9), arg(row, 15)
    work = counter + COUNTER_BYTES + thread * arg(row, 16)
    item, before, start = atomic_add(counter, 1), int64(0), int64(0)
    while start < n:
        end = _sequence_end(start, n, arg(row, 12))
        n_parts = (end - start + ITEM_ROWS - 1) // ITEM_ROWS
        while item < before + n_parts * n_head:
            i = item - before
            _attend_item(row, work, start, end - start, i // n_parts, i % n_parts * ITEM_ROWS)
            item = atomic_add(counter, 1)
        before += n_parts * n_head
        start = end
    if atomic_add(counter + 64, 1) == n_threads - 1:
        st_i64(counter, 0)
        st_i64(counter + 64, 0)

"""Low-rank additions to products, y += scale · B (A x), each row with the adapters of its own.

It does not know which adapters are loaded: what is done to the rows of a step stands in a list of *applications*, and
where the matrices of an adapter are in a table, so that the tape stays as it is while adapters come and go.

    applications    int64: their number in word 0; from word 8 on, 8 words each:
                    first and end of the rows, place of the adapter, bits of the scale, place of the first row in h
    table           int64 [place][matrix][4 words]: address of A, address of B, rank (0: nothing to add), bits of a
                    factor
    A, packed       halves [rank / 16][columns][16], a lane is a row of A; ranks are filled up with zeros
    B, packed       halves [columns of y / 32][rank][32], a lane is a column of y

Whatever the step, an element of A x is computed in one order: within SEGMENT columns, even ones and odd ones apart,
each p = fma(a_k, x_k, p); then even + odd, and the segments one after another. An element of y becomes
y + sum(b_r · h_r), ranks ascending, where h is A x times scale and factor. So a result does not depend on the batch.
"""

from __future__ import annotations

from functools import partial

from numba import int64

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, copy_of, run_of_rows, share
from kernels_cpu.simd import (
    f32_bits,
    f32x16,
    fma,
    larger,
    ld_f32,
    ld_i32,
    ld_i64,
    load,
    load_f16,
    smaller,
    splat,
    store,
    zero,
)
from kernels_cpu.subroutine import subroutine

SEGMENT = 128
"""Columns whose products are added up apart, so that several threads can share a row."""

FEW_ROWS = 8
"""Up to so many rows in a step, threads share the segments of A x; with more of them, the rows."""

MAX_RANK = 512
H_BYTES = 4 * MAX_RANK
"""Bytes of a row of A x, or of one segment of it."""

APPLICATION_WORDS, FIRST_APPLICATION, MATRIX_WORDS = 8, 8, 4
UP_SCRATCH_BYTES = 2 * H_BYTES
"""What a thread needs while it adds B h: two rows of h."""


@subroutine()
def _down_1(a: int, n_cols: int, x: int, out: int) -> None:
    """16 elements of A x for one row, n_cols being even."""
    total = zero(f32x16)
    for first in range(0, n_cols, SEGMENT):
        even, odd = zero(f32x16), zero(f32x16)
        for k in range(first, smaller(first + SEGMENT, n_cols), 2):
            even = fma(load_f16(a + 32 * k), splat(f32x16, ld_f32(x + 4 * k)), even)
            odd = fma(load_f16(a + 32 * k + 32), splat(f32x16, ld_f32(x + 4 * k + 4)), odd)
        total = total + (even + odd)
    store(out, total)


@subroutine()
def _down_2(a: int, n_cols: int, x: int, x_stride: int, out: int, out_stride: int) -> None:
    """16 elements of A x for two rows, n_cols being even."""
    y = x + x_stride
    total_x, total_y = zero(f32x16), zero(f32x16)
    for first in range(0, n_cols, SEGMENT):
        even_x, odd_x, even_y, odd_y = zero(f32x16), zero(f32x16), zero(f32x16), zero(f32x16)
        for k in range(first, smaller(first + SEGMENT, n_cols), 2):
            even, odd = load_f16(a + 32 * k), load_f16(a + 32 * k + 32)
            even_x = fma(even, splat(f32x16, ld_f32(x + 4 * k)), even_x)
            even_y = fma(even, splat(f32x16, ld_f32(y + 4 * k)), even_y)
            odd_x = fma(odd, splat(f32x16, ld_f32(x + 4 * k + 4)), odd_x)
            odd_y = fma(odd, splat(f32x16, ld_f32(y + 4 * k + 4)), odd_y)
        total_x = total_x + (even_x + odd_x)
        total_y = total_y + (even_y + odd_y)
    store(out, total_x)
    store(out + out_stride, total_y)


@subroutine()
def _down_rows(a: int, n_cols: int, x: int, x_stride: int, n: int, out: int, out_stride: int) -> None:
    """16 elements of A x for n rows."""
    for i in range(0, n, 2):
        if i + 1 < n:
            _down_2(a, n_cols, x + i * x_stride, x_stride, out + i * out_stride, out_stride)
        else:
            _down_1(a, n_cols, x + i * x_stride, out + i * out_stride)


@partial(kernel, cost=3)
def lora_down(row: int, thread: int, n_threads: int) -> None:
    """h = A x. Arguments:

    count, x, x_stride, x_own, n_blocks (of 32 columns of x), matrix (its entry in the table's first place),
    place_bytes, applications, h.

    Few rows: h is [rows][segments][rank / 16][16], and its rows begin segments · H_BYTES apart; threads share a list of
    segments and ranks. Else h is [rows][rank / 16][16], H_BYTES apart, split by rows of x.
    """
    n, x_stride, n_cols = ld_i64(arg(row, 0)), arg(row, 2), 32 * arg(row, 4)
    x = copy_of(thread, arg(row, 1), arg(row, 3), n)
    n_segments = (n_cols + SEGMENT - 1) // SEGMENT
    applications = arg(row, 7)
    n_before, n_items = int64(0), int64(0)
    for i in range(ld_i64(applications)):
        p = applications + 8 * (FIRST_APPLICATION + APPLICATION_WORDS * i)
        rank = ld_i64(arg(row, 5) + arg(row, 6) * ld_i64(p + 16) + 16)
        n_items += (rank + 15) // 16 * n_segments
    start, stop = share(n_items, thread, n_threads), share(n_items, thread + 1, n_threads)
    from_row, to_row = share(n, thread, n_threads), share(n, thread + 1, n_threads)
    for i in range(ld_i64(applications)):
        p = applications + 8 * (FIRST_APPLICATION + APPLICATION_WORDS * i)
        first, end, at = ld_i64(p), ld_i64(p + 8), ld_i64(p + 32)
        entry = arg(row, 5) + arg(row, 6) * ld_i64(p + 16)
        a, n_groups = ld_i64(entry), (ld_i64(entry + 16) + 15) // 16
        if n <= FEW_ROWS:
            h_stride = n_segments * H_BYTES
            h, xf = arg(row, 8) + at * h_stride, x + first * x_stride
            for item in range(larger(start - n_before, 0), smaller(stop - n_before, n_groups * n_segments)):
                g, s = item // n_segments, item % n_segments
                n_here = smaller(SEGMENT, n_cols - SEGMENT * s)
                from_a = a + 32 * (g * n_cols + SEGMENT * s)
                to = h + 64 * (s * n_groups + g)
                _down_rows(from_a, n_here, xf + 4 * SEGMENT * s, x_stride, end - first, to, h_stride)
            n_before += n_groups * n_segments
        else:
            begin, n_mine = larger(first, from_row), smaller(end, to_row) - larger(first, from_row)
            h = arg(row, 8) + (at + begin - first) * H_BYTES
            for g in range(n_groups):
                _down_rows(a + 32 * g * n_cols, n_cols, x + begin * x_stride, x_stride, n_mine, h + 64 * g, H_BYTES)


@subroutine()
def _scaled(h: int, n_segments: int, n_groups: int, scale: float, out: int) -> None:
    """The sum of a row's segments, times scale."""
    for g in range(n_groups):
        total = zero(f32x16)
        for s in range(n_segments):
            total = total + load(f32x16, h + 64 * (s * n_groups + g))
        store(out + 64 * g, total * splat(f32x16, scale))


@subroutine()
def _up_1(b: int, rank: int, h: int, first: int, end: int, out: int) -> None:
    """Add B h to units first .. end - 1 of one row."""
    for unit in range(first, end):
        w, y = b + 64 * rank * unit, out + 128 * unit
        low, high = zero(f32x16), zero(f32x16)
        for r in range(rank):
            c = splat(f32x16, ld_f32(h + 4 * r))
            low = fma(load_f16(w + 64 * r), c, low)
            high = fma(load_f16(w + 64 * r + 32), c, high)
        store(y, load(f32x16, y) + low)
        store(y + 64, load(f32x16, y + 64) + high)


@subroutine()
def _up_2(b: int, rank: int, h: int, first: int, end: int, out: int, out_stride: int) -> None:
    """Add B h to units first .. end - 1 of two rows, whose h lie H_BYTES apart."""
    for unit in range(first, end):
        w, y = b + 64 * rank * unit, out + 128 * unit
        z = y + out_stride
        low_y, high_y, low_z, high_z = zero(f32x16), zero(f32x16), zero(f32x16), zero(f32x16)
        for r in range(rank):
            c, d = splat(f32x16, ld_f32(h + 4 * r)), splat(f32x16, ld_f32(h + H_BYTES + 4 * r))
            low, high = load_f16(w + 64 * r), load_f16(w + 64 * r + 32)
            low_y, high_y = fma(low, c, low_y), fma(high, c, high_y)
            low_z, high_z = fma(low, d, low_z), fma(high, d, high_z)
        store(y, load(f32x16, y) + low_y)
        store(y + 64, load(f32x16, y + 64) + high_y)
        store(z, load(f32x16, z) + low_z)
        store(z + 64, load(f32x16, z + 64) + high_z)


@partial(kernel, cost=3)
def lora_up(row: int, thread: int, n_threads: int) -> None:
    """y += B h, split by columns as the product that wrote y. Arguments:

    count, h, n_blocks (as in lora_down), matrix, place_bytes, applications, out, out_stride, n_units (of 32 columns),
    units_before, units_after (see linear), scratch (UP_SCRATCH_BYTES for each thread).
    """
    n, n_units, before = ld_i64(arg(row, 0)), arg(row, 8), arg(row, 9)
    in_all = before + n_units + arg(row, 10)
    first_unit = smaller(larger(share(in_all, thread, n_threads) - before, 0), n_units)
    end_unit = smaller(larger(share(in_all, thread + 1, n_threads) - before, 0), n_units)
    n_segments = (32 * arg(row, 2) + SEGMENT - 1) // SEGMENT if n <= FEW_ROWS else 1
    h_stride, out_stride = n_segments * H_BYTES, arg(row, 7)
    applications, scratch = arg(row, 5), arg(row, 11) + UP_SCRATCH_BYTES * thread
    for i in range(ld_i64(applications) if first_unit < end_unit else 0):
        p = applications + 8 * (FIRST_APPLICATION + APPLICATION_WORDS * i)
        first, end = ld_i64(p), ld_i64(p + 8)
        entry = arg(row, 3) + arg(row, 4) * ld_i64(p + 16)
        b, rank = ld_i64(entry + 8), ld_i64(entry + 16)
        n_groups, scale = (rank + 15) // 16, f32_bits(ld_i64(p + 24)) * f32_bits(ld_i64(entry + 24))
        h, t = arg(row, 1) + ld_i64(p + 32) * h_stride, first
        while t < end and rank != 0:
            at, to = h + (t - first) * h_stride, arg(row, 6) + t * out_stride
            _scaled(at, n_segments, n_groups, scale, scratch)
            if t + 1 < end:
                _scaled(at + h_stride, n_segments, n_groups, scale, scratch + H_BYTES)
                _up_2(b, rank, scratch, first_unit, end_unit, to, out_stride)
                t += 2
            else:
                _up_1(b, rank, scratch, first_unit, end_unit, to)
                t += 1


@subroutine()
def _row_of_a(a: int, n_groups: int, scale: float, out: int) -> None:
    """A row of an embedding's A, halves [rank / 16][16], times scale."""
    for g in range(n_groups):
        store(out + 64 * g, load_f16(a + 32 * g) * splat(f32x16, scale))


@partial(kernel, cost=2)
def lora_embedding(row: int, thread: int, n_threads: int) -> None:
    """y += B a, a being row `token id` of A, which here is halves [tokens][rank, filled up to 16s]. Arguments:

    count, ids (int32), matrix, place_bytes, applications, out, out_stride, own, n_units, scratch (as in lora_up).

    Split by rows, or, where out has own copies, every thread for itself.
    """
    n, out_stride = ld_i64(arg(row, 0)), arg(row, 6)
    out, scratch = copy_of(thread, arg(row, 5), arg(row, 7), n), arg(row, 9) + UP_SCRATCH_BYTES * thread
    from_row, to_row = run_of_rows(thread, n_threads, n, arg(row, 7))
    applications = arg(row, 4)
    for i in range(ld_i64(applications)):
        p = applications + 8 * (FIRST_APPLICATION + APPLICATION_WORDS * i)
        entry = arg(row, 2) + arg(row, 3) * ld_i64(p + 16)
        a, b, rank = ld_i64(entry), ld_i64(entry + 8), ld_i64(entry + 16)
        n_groups, scale = (rank + 15) // 16, f32_bits(ld_i64(p + 24)) * f32_bits(ld_i64(entry + 24))
        if rank != 0:
            for t in range(larger(ld_i64(p), from_row), smaller(ld_i64(p + 8), to_row)):
                token = int64(ld_i32(arg(row, 1) + 4 * t))
                _row_of_a(a + 32 * n_groups * token, n_groups, scale, scratch)
                _up_1(b, rank, scratch, 0, arg(row, 8), out + t * out_stride)

"""Sets of configurations and of what waits, each kept once under a number; how they follow one another it does not
know."""

from __future__ import annotations

from numba import int64

from kernels_cpu.automata.cells import are_equal, is_after, item, mixed, put, put_cell, sort, spend, word
from kernels_cpu.automata.layout import (
    DEAD,
    DELTA,
    FOLLOWING,
    FRAME_TABLE,
    FRAMES,
    GROW,
    HAS_SETS,
    IS_COMPLETE,
    MAX_CELLS,
    MAX_FRAMES,
    MAX_PAIRS,
    MAX_STATES,
    N_CELLS,
    N_FRAMES,
    N_PAIRS,
    N_STATES,
    NODES,
    PAIRS,
    RANGE,
    STATE_CELLS,
    STATE_TABLE,
    STATES,
    TABLE,
    TOKENS,
    UNKNOWN,
)
from kernels_cpu.simd import st_i64
from kernels_cpu.subroutine import subroutine


@subroutine(int64)
def _hash_of(cells: int, n: int, seed: int) -> int:
    h = seed + 0x1234567
    for i in range(3 * n):
        h = mixed(h, item(cells, i))
    return h & 0x7FFFFFFF


@subroutine()
def _fill_row(m: int, state: int, cells: int, n: int) -> None:
    """Which bytes may follow a state: those are UNKNOWN, the others lead nowhere."""
    nodes, delta = word(m, NODES), word(m, DELTA)
    row = word(m, FOLLOWING) + 1024 * state
    cost = 64
    for byte in range(256):
        put(row, byte, DEAD)
    for i in range(n):
        node = nodes + 16 * item(cells, 3 * i)
        if item(node, 0) == RANGE:
            for byte in range(item(node, 1), item(node, 2) + 1):
                put(row, byte, UNKNOWN)
            cost += item(node, 2) - item(node, 1) + 1
        elif item(node, 0) == TABLE:
            table = delta + 1024 * item(node, 1)
            for byte in range(256):
                put(row, byte, item(row, byte) | (-1 if item(table, byte) >= 0 else 0))
            cost += 64
    spend(m, cost)


@subroutine()
def _enter(table: int, last: int, h: int, number: int) -> None:
    """Put a number into a hash table that does not have it."""
    slot = h & last
    while item(table, slot) != 0:
        slot = (slot + 1) & last
    put(table, slot, number)


@subroutine()
def fill_tables(m: int) -> None:
    """Enter all states and frames into their hash tables, which are empty: those grew."""
    states, cells, last = word(m, STATES), word(m, STATE_CELLS), 2 * word(m, MAX_STATES) - 1
    for state in range(1, word(m, N_STATES)):
        at = states + 16 * state
        h = _hash_of(cells + 12 * item(at, 0), item(at, 1), item(at, 2) & IS_COMPLETE)
        _enter(word(m, STATE_TABLE), last, h, state)
    frames, pairs, last = word(m, FRAMES), word(m, PAIRS), 2 * word(m, MAX_FRAMES) - 1
    for frame in range(1, word(m, N_FRAMES)):
        at = frames + 8 * frame
        h = _hash_of(pairs + 12 * item(at, 0), item(at, 1), 0)
        _enter(word(m, FRAME_TABLE), last, h, frame)


@subroutine(int64)
def interned_state(m: int, cells: int, n: int, flags: int) -> int:
    """The state of these configurations (which are sorted): the one that is known, else a new one, or GROW."""
    if n == 0 and flags == 0:
        return int64(DEAD)
    states, pool, table = word(m, STATES), word(m, STATE_CELLS), word(m, STATE_TABLE)
    last = 2 * word(m, MAX_STATES) - 1
    slot = _hash_of(cells, n, flags & IS_COMPLETE) & last
    while item(table, slot) != 0:
        found = item(table, slot)
        at = states + 16 * found
        is_same = item(at, 1) == n and (item(at, 2) & IS_COMPLETE) == (flags & IS_COMPLETE)
        if is_same and are_equal(pool + 12 * item(at, 0), cells, 3 * n) != 0:
            return found
        slot = (slot + 1) & last
    new, first = word(m, N_STATES), word(m, N_CELLS)
    if new >= word(m, MAX_STATES) or first + n > word(m, MAX_CELLS):
        return int64(GROW)
    nodes = word(m, NODES)
    for i in range(n):
        put_cell(pool, first + i, item(cells, 3 * i), item(cells, 3 * i + 1), item(cells, 3 * i + 2))
        if item(nodes, 4 * item(cells, 3 * i)) == TOKENS:
            flags |= HAS_SETS
    at = states + 16 * new
    put(at, 0, first)
    put(at, 1, n)
    put(at, 2, flags)
    put(at, 3, UNKNOWN)
    _fill_row(m, new, cells, n)
    put(table, slot, new)
    st_i64(m + 8 * N_STATES, new + 1)
    st_i64(m + 8 * N_CELLS, first + n)
    return new


@subroutine(int64)
def interned_frame(m: int, cells: int, n: int) -> int:
    """The frame of these pairs, which need not be sorted: its number, or GROW."""
    sort(cells, n)
    kept = min(n, 1)
    for i in range(1, n):
        x, y, z = item(cells, 3 * i), item(cells, 3 * i + 1), item(cells, 3 * i + 2)
        if is_after(cells, kept - 1, x, y, z) == 0 and are_equal(cells + 12 * (kept - 1), cells + 12 * i, 3) == 0:
            put_cell(cells, kept, x, y, z)
            kept += 1
    frames, pool, table = word(m, FRAMES), word(m, PAIRS), word(m, FRAME_TABLE)
    last = 2 * word(m, MAX_FRAMES) - 1
    slot = _hash_of(cells, kept, 0) & last
    while item(table, slot) != 0:
        found = item(table, slot)
        at = frames + 8 * found
        if item(at, 1) == kept and are_equal(pool + 12 * item(at, 0), cells, 3 * kept) != 0:
            return found
        slot = (slot + 1) & last
    new, first = word(m, N_FRAMES), word(m, N_PAIRS)
    if new >= word(m, MAX_FRAMES) or first + kept > word(m, MAX_PAIRS):
        return int64(GROW)
    for i in range(kept):
        put_cell(pool, first + i, item(cells, 3 * i), item(cells, 3 * i + 1), item(cells, 3 * i + 2))
    put(frames + 8 * new, 0, first)
    put(frames + 8 * new, 1, kept)
    put(table, slot, new)
    st_i64(m + 8 * N_FRAMES, new + 1)
    st_i64(m + 8 * N_PAIRS, first + kept)
    return new


@subroutine(int64)
def keep_state(m: int, cells: int, n: int, flags: int) -> int:
    """The number of a state of these configurations (which are sorted in place), or GROW."""
    sort(cells, n)
    return interned_state(m, cells, n, flags)

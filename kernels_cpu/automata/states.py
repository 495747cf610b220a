"""The states of a pushdown automaton over bytes, made when they are first met; of tokens it knows nothing."""

from __future__ import annotations

from numba import int64

from kernels_cpu.automata.layout import (
    CALLED,
    DEAD,
    DELTA,
    FOLLOWING,
    FRAME_TABLE,
    FRAMES,
    GROW,
    HAS_SETS,
    IS_COMPLETE,
    KEPT,
    LOG,
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
    ROOT,
    RULES,
    SEEN,
    STAMP,
    STATE_CELLS,
    STATE_TABLE,
    STATES,
    TARGETS,
    TOO_MANY,
    UNKNOWN,
    WORK,
    WORK_CELLS,
)
from kernels_cpu.compile import routine
from kernels_cpu.simd import ld_i32, ld_i64, st_i32, st_i64
from kernels_cpu.subroutine import subroutine

# Operations of nodes, as in localllm.grammar.program.
RETURN, RANGE, SPLIT, CALL, TABLE, LOOP, INC, TOKENS = range(8)


@subroutine(int64, inlined=True)
def word(record: int, i: int) -> int:
    return ld_i64(record + 8 * i)


@subroutine(int64, inlined=True)
def item(table: int, i: int) -> int:
    """Of a table of int32."""
    return int64(ld_i32(table + 4 * i))


@subroutine(inlined=True)
def put(table: int, i: int, value: int) -> None:
    st_i32(table + 4 * i, value)


@subroutine(inlined=True)
def put_cell(table: int, i: int, x: int, y: int, z: int) -> None:
    """Cell `i` of a table of three int32 each."""
    put(table, 3 * i, x)
    put(table, 3 * i + 1, y)
    put(table, 3 * i + 2, z)


@subroutine(int64, inlined=True)
def _mixed(h: int, x: int) -> int:
    h = (h ^ x) * 0x2545F4914F6CDD1D
    return h ^ ((h >> 29) & 0x7FFFFFFFF)


@subroutine(int64)
def _hash_of(cells: int, n: int, seed: int) -> int:
    h = seed + 0x1234567
    for i in range(3 * n):
        h = _mixed(h, item(cells, i))
    return h & 0x7FFFFFFF


@subroutine(int64, inlined=True)
def _is_after(cells: int, i: int, x: int, y: int, z: int) -> int:
    """Whether cell `i` comes after (x, y, z)."""
    if item(cells, 3 * i) != x:
        return int64(item(cells, 3 * i) > x)
    if item(cells, 3 * i + 1) != y:
        return int64(item(cells, 3 * i + 1) > y)
    return int64(item(cells, 3 * i + 2) > z)


@subroutine()
def sort(cells: int, n: int) -> None:
    """Shell sort: cells are few, and often in order."""
    gap = 1
    while 3 * gap + 1 < n:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            x, y, z = item(cells, 3 * i), item(cells, 3 * i + 1), item(cells, 3 * i + 2)
            j = i
            while j >= gap and _is_after(cells, j - gap, x, y, z) != 0:
                k = j - gap
                put_cell(cells, j, item(cells, 3 * k), item(cells, 3 * k + 1), item(cells, 3 * k + 2))
                j = k
            put_cell(cells, j, x, y, z)
        gap //= 3


@subroutine(int64, inlined=True)
def _are_equal(a: int, b: int, n_words: int) -> int:
    for i in range(n_words):
        if item(a, i) != item(b, i):
            return int64(0)
    return int64(1)


@subroutine()
def _fill_row(m: int, state: int, cells: int, n: int) -> None:
    """Which bytes may follow a state: those are UNKNOWN, the others lead nowhere."""
    nodes, delta = word(m, NODES), word(m, DELTA)
    row = word(m, FOLLOWING) + 1024 * state
    for byte in range(256):
        put(row, byte, DEAD)
    for i in range(n):
        node = nodes + 16 * item(cells, 3 * i)
        if item(node, 0) == RANGE:
            for byte in range(item(node, 1), item(node, 2) + 1):
                put(row, byte, UNKNOWN)
        elif item(node, 0) == TABLE:
            table = delta + 1024 * item(node, 1)
            for byte in range(256):
                put(row, byte, item(row, byte) | (-1 if item(table, byte) >= 0 else 0))


@subroutine()
def _enter(table: int, last: int, h: int, number: int) -> None:
    """Put a number into a hash table that does not have it."""
    slot = h & last
    while item(table, slot) != 0:
        slot = (slot + 1) & last
    put(table, slot, number)


@routine("void(int64)")
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
        if is_same and _are_equal(pool + 12 * item(at, 0), cells, 3 * n) != 0:
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
def _interned_frame(m: int, cells: int, n: int) -> int:
    """The frame of these pairs, which need not be sorted: its number, or GROW."""
    sort(cells, n)
    kept = min(n, 1)
    for i in range(1, n):
        x, y, z = item(cells, 3 * i), item(cells, 3 * i + 1), item(cells, 3 * i + 2)
        if _is_after(cells, kept - 1, x, y, z) == 0 and _are_equal(cells + 12 * (kept - 1), cells + 12 * i, 3) == 0:
            put_cell(cells, kept, x, y, z)
            kept += 1
    frames, pool, table = word(m, FRAMES), word(m, PAIRS), word(m, FRAME_TABLE)
    last = 2 * word(m, MAX_FRAMES) - 1
    slot = _hash_of(cells, kept, 0) & last
    while item(table, slot) != 0:
        found = item(table, slot)
        at = frames + 8 * found
        if item(at, 1) == kept and _are_equal(pool + 12 * item(at, 0), cells, 3 * kept) != 0:
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


@subroutine(int64, inlined=True)
def _is_new(m: int, n_seen: int, x: int, y: int, z: int) -> int:
    """Whether a configuration is met for the first time in this closure; then it is noted as number `n_seen`."""
    seen, log, stamp = word(m, SEEN), word(m, LOG), word(m, STAMP)
    slot = _mixed(_mixed(_mixed(int64(0x9E37), x), y), z) & (2 * WORK_CELLS - 1)
    while item(seen, 2 * slot) == stamp:
        i = 3 * item(seen, 2 * slot + 1)
        if item(log, i) == x and item(log, i + 1) == y and item(log, i + 2) == z:
            return int64(0)
        slot = (slot + 1) & (2 * WORK_CELLS - 1)
    put(seen, 2 * slot, stamp)
    put(seen, 2 * slot + 1, n_seen)
    put_cell(log, n_seen, x, y, z)
    return int64(1)


@subroutine(int64)
def _next_call(m: int, n_called: int) -> int:
    """The rule of least rank among those that are called, or -1."""
    called, rules = word(m, CALLED), word(m, RULES)
    best, best_rank = int64(-1), int64(1) << 40
    for i in range(n_called):
        rule = item(called, 4 * i)
        if rule >= 0 and item(rules, 3 * rule + 2) < best_rank:
            best, best_rank = rule, item(rules, 3 * rule + 2)
    return best


@subroutine(int64)
def _frame_of_call(m: int, n_called: int, rule: int, free: int) -> int:
    """The frame of all that wait for `rule`, which are taken off the list; `free` are cells to use."""
    called = word(m, CALLED)
    n = 0
    for i in range(n_called):
        if item(called, 4 * i) == rule:
            put_cell(free, n, item(called, 4 * i + 1), item(called, 4 * i + 2), item(called, 4 * i + 3))
            put(called, 4 * i, -1)
            n += 1
    return _interned_frame(m, free, n)


@subroutine(int64)
def closed(m: int, n_work: int) -> int:
    """The state of the first `n_work` configurations of WORK and of all that follows from them without a byte.

    A state, GROW, or TOO_MANY.
    """
    stamp = word(m, STAMP) + 1
    if stamp >= 0x7FFFFFFF:
        stamp = 1
        for i in range(4 * WORK_CELLS):
            put(word(m, SEEN), i, 0)
    st_i64(m + 8 * STAMP, stamp)
    nodes, targets, rules = word(m, NODES), word(m, TARGETS), word(m, RULES)
    frames, pairs = word(m, FRAMES), word(m, PAIRS)
    work, kept, called = word(m, WORK), word(m, KEPT), word(m, CALLED)
    n_kept, n_seen, n_called, flags = 0, 0, 0, 0
    while n_work > 0 or n_called > 0:
        if n_work == 0:
            rule = _next_call(m, n_called)
            if rule < 0:
                n_called = 0
                continue
            frame = _frame_of_call(m, n_called, rule, work)
            if frame < 0:
                return frame
            put_cell(work, 0, item(rules, 3 * rule), 0, frame)
            n_work = 1
        n_work -= 1
        x, y, z = item(work, 3 * n_work), item(work, 3 * n_work + 1), item(work, 3 * n_work + 2)
        if _is_new(m, n_seen, x, y, z) == 0:
            continue
        n_seen += 1
        node = nodes + 16 * x
        op, a, b, c = item(node, 0), item(node, 1), item(node, 2), item(node, 3)
        n_more = 2
        if op == SPLIT:
            n_more = b
        elif op in (RETURN, CALL):
            n_more = item(frames, 2 * z + 1) + 1
        if max(n_work + n_more, max(n_called + n_more, n_seen + 1)) > WORK_CELLS:
            return int64(TOO_MANY)
        if op in (RANGE, TABLE, TOKENS):
            put_cell(kept, n_kept, x, y, z)
            n_kept += 1
            if op == TABLE and b >= 0:
                put_cell(work, n_work, b, y, z)
                n_work += 1
        elif op == SPLIT:
            for i in range(b):
                put_cell(work, n_work, item(targets, a + i), y, z)
                n_work += 1
        elif op == RETURN:
            if z == 0:
                flags |= IS_COMPLETE
            first = item(frames, 2 * z)
            for i in range(first, first + item(frames, 2 * z + 1)):
                put_cell(work, n_work, item(pairs, 3 * i), item(pairs, 3 * i + 1), item(pairs, 3 * i + 2))
                n_work += 1
        elif op == CALL:
            if z != 0 and item(nodes, 4 * c) == RETURN:
                first = item(frames, 2 * z)
                for i in range(first, first + item(frames, 2 * z + 1)):
                    put(called, 4 * n_called, a)
                    put(called, 4 * n_called + 1, item(pairs, 3 * i))
                    put(called, 4 * n_called + 2, item(pairs, 3 * i + 1))
                    put(called, 4 * n_called + 3, item(pairs, 3 * i + 2))
                    n_called += 1
            else:
                put(called, 4 * n_called, a)
                put(called, 4 * n_called + 1, c)
                put(called, 4 * n_called + 2, y)
                put(called, 4 * n_called + 3, z)
                n_called += 1
            if item(rules, 3 * a + 1) != 0:
                put_cell(work, n_work, c, y, z)
                n_work += 1
        elif op == INC:
            loop = nodes + 16 * c
            count = y + 1
            if item(loop, 2) < 0:
                count = min(count, item(loop, 1))
            put_cell(work, n_work, c, count, z)
            n_work += 1
        else:
            if y >= a:
                put_cell(work, n_work, x + 1, y, z)
                n_work += 1
            if b < 0 or y < b:
                put_cell(work, n_work, c, y, z)
                n_work += 1
    sort(kept, n_kept)
    return interned_state(m, kept, n_kept, flags)


@subroutine(int64)
def _stepped(m: int, state: int, byte: int) -> int:
    nodes, delta, work = word(m, NODES), word(m, DELTA), word(m, WORK)
    at = word(m, STATES) + 16 * state
    cells, n = word(m, STATE_CELLS) + 12 * item(at, 0), item(at, 1)
    if n > WORK_CELLS:
        return int64(TOO_MANY)
    n_work = 0
    for i in range(n):
        node = nodes + 16 * item(cells, 3 * i)
        target = int64(-1)
        if item(node, 0) == RANGE:
            if item(node, 1) <= byte and byte <= item(node, 2):
                target = item(node, 3)
        elif item(node, 0) == TABLE:
            row = item(delta, 256 * item(node, 1) + byte)
            if row >= 0:
                target = item(node, 3) + row
        if target >= 0:
            put_cell(work, n_work, target, item(cells, 3 * i + 1), item(cells, 3 * i + 2))
            n_work += 1
    new = closed(m, n_work)
    if new >= 0:
        put(word(m, FOLLOWING), 256 * state + byte, new)
    return new


@subroutine(int64, inlined=True)
def after_byte(m: int, state: int, byte: int) -> int:
    """The state after a byte; DEAD where it does not fit; GROW or TOO_MANY."""
    found = item(word(m, FOLLOWING), 256 * state + byte)
    return _stepped(m, state, byte) if found == UNKNOWN else found


@subroutine(int64)
def start(m: int) -> int:
    """The state before the first byte."""
    put_cell(word(m, WORK), 0, item(word(m, RULES), 3 * word(m, ROOT)), 0, 0)
    return closed(m, 1)


@routine("int64(int64, int64, int64)")
def keep_frame(m: int, cells: int, n: int) -> int:
    """The number of a frame of these pairs (which are sorted in place), or GROW."""
    return _interned_frame(m, cells, n)


@routine("int64(int64, int64, int64, int64)")
def keep_state(m: int, cells: int, n: int, flags: int) -> int:
    """The number of a state of these configurations (which are sorted in place), or GROW."""
    sort(cells, n)
    return interned_state(m, cells, n, flags)

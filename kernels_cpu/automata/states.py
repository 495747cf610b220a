"""How the states of a pushdown automaton over bytes follow one another; of tokens it knows nothing."""

from __future__ import annotations

from numba import int64

from kernels_cpu.automata.cells import is_spent, item, mixed, paid, put, put_cell, sort, spend, word
from kernels_cpu.automata.interning import interned_frame, interned_state
from kernels_cpu.automata.layout import (
    CALL,
    CALLED,
    DELTA,
    FOLLOWING,
    FRAMES,
    INC,
    IS_COMPLETE,
    KEPT,
    LOG,
    NODES,
    PAIRS,
    RANGE,
    RETURN,
    ROOT,
    RULES,
    SEEN,
    SPLIT,
    STAMP,
    STATE_CELLS,
    STATES,
    TABLE,
    TARGETS,
    TOKENS,
    TOO_LONG,
    TOO_MANY,
    UNKNOWN,
    WORK,
    WORK_CELLS,
)
from kernels_cpu.simd import st_i64
from kernels_cpu.subroutine import subroutine


@subroutine(int64, inlined=True)
def _is_new(m: int, n_seen: int, x: int, y: int, z: int) -> int:
    """Whether a configuration is met for the first time in this closure; then it is noted as number `n_seen`."""
    seen, log, stamp = word(m, SEEN), word(m, LOG), word(m, STAMP)
    slot = mixed(mixed(mixed(int64(0x9E37), x), y), z) & (2 * WORK_CELLS - 1)
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
    return interned_frame(m, free, n)


@subroutine(int64)
def closed(m: int, n_work: int) -> int:
    """The state of the first `n_work` configurations of WORK and of all that follows from them without a byte.

    A state, GROW, TOO_MANY or TOO_LONG.
    """
    if is_spent(m) != 0:
        return int64(TOO_LONG)
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
            spend(m, n_called)
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
    spend(m, 4 * n_seen)
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
    """The state after a byte; DEAD where it does not fit; GROW, TOO_MANY or TOO_LONG."""
    found = item(word(m, FOLLOWING), 256 * state + byte)
    return _stepped(m, state, byte) if found == UNKNOWN else found


@subroutine(int64)
def start_state(m: int) -> int:
    """The state before the first byte, GROW, TOO_MANY or TOO_LONG."""
    put_cell(word(m, WORK), 0, item(word(m, RULES), 3 * word(m, ROOT)), 0, 0)
    return paid(m, closed(m, 1))

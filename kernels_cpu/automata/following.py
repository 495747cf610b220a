"""The state after texts and tokens, and what must follow; which tokens may it does not know."""

from __future__ import annotations

from numba import int64

from kernels_cpu.automata.cells import has, item, paid, put_cell, sort, word
from kernels_cpu.automata.interning import interned_state
from kernels_cpu.automata.layout import (
    DEAD,
    FOLLOWING,
    HAS_SETS,
    IS_COMPLETE,
    MASK_WORDS,
    NODES,
    PICKED,
    SET_BITS,
    STATE_CELLS,
    STATES,
    TOKEN_BYTES,
    TOKEN_STARTS,
    TOKENS,
    TOO_MANY,
    WORK,
    WORK_CELLS,
)
from kernels_cpu.automata.states import after_byte, closed
from kernels_cpu.simd import ld_u8, st_u8
from kernels_cpu.subroutine import subroutine


@subroutine(int64)
def _after(m: int, state: int, data: int, n: int) -> int:
    i = 0
    while i < n and state > 0:
        state = after_byte(m, state, int64(ld_u8(data + i)))
        i += 1
    return state


@subroutine(int64)
def bytes_state(m: int, state: int, data: int, n: int) -> int:
    """The state after `n` bytes at `data`: DEAD where they do not fit, GROW, TOO_MANY, TOO_LONG."""
    return paid(m, _after(m, state, data, n))


@subroutine(int64)
def _after_set(m: int, v: int, state: int, token: int) -> int:
    """The state after a token that is taken as one of a set."""
    n_words, nodes, work = word(v, MASK_WORDS), word(m, NODES), word(m, WORK)
    at = word(m, STATES) + 16 * state
    cells, n = word(m, STATE_CELLS) + 12 * item(at, 0), item(at, 1)
    if n > WORK_CELLS:
        return int64(TOO_MANY)
    n_work = 0
    for i in range(n):
        node = nodes + 16 * item(cells, 3 * i)
        if item(node, 0) == TOKENS and has(word(m, SET_BITS) + 4 * n_words * item(node, 1), token) != 0:
            put_cell(work, n_work, item(node, 3), item(cells, 3 * i + 1), item(cells, 3 * i + 2))
            n_work += 1
    return closed(m, n_work)


@subroutine(int64)
def _united(m: int, one: int, other: int) -> int:
    """The state of both."""
    picked, n, flags = word(m, PICKED), 0, 0
    for k in range(2):
        at = word(m, STATES) + 16 * (one if k == 0 else other)
        cells = word(m, STATE_CELLS) + 12 * item(at, 0)
        flags |= item(at, 2)
        for i in range(item(at, 1)):
            put_cell(picked, n, item(cells, 3 * i), item(cells, 3 * i + 1), item(cells, 3 * i + 2))
            n += 1
    sort(picked, n)
    kept = 0
    for i in range(n):
        x, y, z = item(picked, 3 * i), item(picked, 3 * i + 1), item(picked, 3 * i + 2)
        k = 3 * (kept - 1)
        if kept == 0 or item(picked, k) != x or item(picked, k + 1) != y or item(picked, k + 2) != z:
            put_cell(picked, kept, x, y, z)
            kept += 1
    return interned_state(m, picked, kept, flags)


@subroutine(int64)
def _after_token(m: int, v: int, state: int, token: int) -> int:
    first, end = item(word(v, TOKEN_STARTS), token), item(word(v, TOKEN_STARTS), token + 1)
    new = _after(m, state, word(v, TOKEN_BYTES) + first, end - first) if end > first else int64(DEAD)
    if new < 0 or (item(word(m, STATES), 4 * state + 2) & HAS_SETS) == 0:
        return new
    other = _after_set(m, v, state, token)
    if other <= 0:
        return new if other == 0 else other
    return other if new == DEAD else _united(m, new, other)


@subroutine(int64)
def token_state(m: int, v: int, state: int, token: int) -> int:
    """The state after a token: DEAD where it does not fit, GROW, TOO_MANY, TOO_LONG."""
    return paid(m, _after_token(m, v, state, token))


@subroutine(int64)
def _forced(m: int, state: int, out: int, most: int) -> int:
    n = 0
    while n < most and (item(word(m, STATES), 4 * state + 2) & (IS_COMPLETE | HAS_SETS)) == 0:
        row = word(m, FOLLOWING) + 1024 * state
        found = -1
        for byte in range(256):
            if item(row, byte) != DEAD:
                if found >= 0:
                    return n
                found = byte
        if found < 0:
            return n
        st_u8(out + n, found)
        state = after_byte(m, state, found)
        if state < 0:
            return state
        n += 1
    return n


@subroutine(int64)
def forced_bytes(m: int, state: int, out: int, most: int) -> int:
    """How many bytes are the only ones that can follow, up to `most`, written to `out`; GROW, TOO_MANY, TOO_LONG."""
    return paid(m, _forced(m, state, out, most))

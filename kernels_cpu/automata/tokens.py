"""Which tokens may follow a state of an automaton, and the state after one: a walk of the vocabulary's trie.

A token is allowed if its bytes lead somewhere. Most are found without a walk: what stays within the DFA of a terminal
is the same wherever that terminal is called (`row_tokens`, kept by whoever owns the record), so that only what leaves
it is walked, from the places where it leaves; and plain characters within a string of counted characters are tokens of
at most so many of them.
"""

from __future__ import annotations

from numba import int32, int64

from kernels_cpu.automata.cells import add, copy, has, is_spent, item, paid, put, put_cell, sort, spend, unite, word
from kernels_cpu.automata.interning import interned_state
from kernels_cpu.automata.layout import (
    CHARACTER,
    DEAD,
    ENDS,
    FOLLOWING,
    HAS_SETS,
    INC,
    IS_COMPLETE,
    KNOWN,
    KNOWN_BY_REST,
    LONGEST,
    MASK_WORDS,
    MASKS,
    MAX_MASKS,
    MOST_PLAIN,
    N_ENDS,
    N_MASKS,
    N_REST,
    N_TRIE,
    N_TWINS,
    NODES,
    PICKED,
    PLAIN,
    REST,
    ROW_INFO,
    SET_BITS,
    STATE_CELLS,
    STATES,
    TABLE,
    TOKENS,
    TOO_LONG,
    TRIE,
    TWINS,
    WANT_MASKS,
    WANT_ROW,
    WANTED,
    WAY,
    WIDE,
    WORK,
)
from kernels_cpu.automata.states import after_byte, closed
from kernels_cpu.compile import routine
from kernels_cpu.simd import ld_i64, ld_u8, st_i32, st_i64
from kernels_cpu.subroutine import subroutine


@subroutine(int64)
def _walk(m: int, trie: int, begin: int, end: int, state: int, bits: int) -> int:
    """Add the tokens of a trie's nodes begin ... end, below a node that `state` is at. 0, or what is less."""
    if is_spent(m) != 0:
        return int64(TOO_LONG)
    way, depth = word(m, WAY), 0
    put(way, 0, end)
    put(way, 1, state)
    i, n_met = begin, 0
    while i < end:
        n_met += 1
        while i >= item(way, 2 * depth):
            depth -= 1
        packed, token = item(trie, 2 * i), item(trie, 2 * i + 1)
        size = packed >> 8
        new = after_byte(m, item(way, 2 * depth + 1), packed & 255)
        if new == DEAD:
            i += size
            continue
        if new < 0:
            return new
        if token >= 0:
            add(bits, token)
        if size > 1:
            depth += 1
            put(way, 2 * depth, i + size)
            put(way, 2 * depth + 1, new)
        i += 1
    spend(m, n_met)
    return int64(0)


@routine("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def row_tokens(
    trie: int, n_trie: int, delta: int, accepting: int, row: int, way: int, bits: int, exits: int, most: int
) -> int:
    """Add the tokens whose bytes stay within a DFA that is in a row, and list the places where it may be left and that
    have something below them. delta: int32 [n_rows][256]; accepting: uint8 [n_rows]; exits: int32 [most].

    The number of exits.
    """
    depth, n_exits = 0, 0
    put(way, 0, n_trie)
    put(way, 1, row)
    i = 0
    while i < n_trie:
        while i >= item(way, 2 * depth):
            depth -= 1
        packed, token = item(trie, 2 * i), item(trie, 2 * i + 1)
        size = packed >> 8
        new = item(delta, 256 * item(way, 2 * depth + 1) + (packed & 255))
        if new < 0:
            i += size
            continue
        if token >= 0:
            add(bits, token)
        if size > 1:
            if ld_u8(accepting + new) != 0 and n_exits < most:
                put(exits, n_exits, i)
                n_exits += 1
            depth += 1
            put(way, 2 * depth, i + size)
            put(way, 2 * depth + 1, new)
        i += 1
    return n_exits


@subroutine(int64, inlined=True)
def _end_of(node: int) -> int:
    """Where a TABLE node's DFA goes on when it has a word."""
    b = item(node, 2)
    return b if b >= 0 else -2 - b


@subroutine(int64)
def _known(m: int, v: int, info: int, end: int, y: int, z: int, bits: int) -> int:
    """Add the tokens of a row that is known: those that stay within it, and those that leave it. 0, or what is less."""
    unite(bits, ld_i64(info + 8), word(v, MASK_WORDS))
    exits, n_exits = ld_i64(info + 16), ld_i64(info + 24)
    if n_exits == 0:
        return int64(0)
    put_cell(word(m, WORK), 0, end, y, z)
    behind = closed(m, 1)
    if behind <= 0:
        return behind
    trie = word(v, REST if ld_i64(info) == KNOWN_BY_REST else TRIE)
    row = word(m, FOLLOWING) + 1024 * behind
    spend(m, n_exits)
    for i in range(n_exits):
        place = item(exits, i)
        last = place + (item(trie, 2 * place) >> 8)
        below = place + 1
        while below < last and item(row, item(trie, 2 * below) & 255) == DEAD:
            below += item(trie, 2 * below) >> 8
        if below < last:
            failed = _walk(m, trie, below, last, behind, bits)
            if failed < 0:
                return failed
    return int64(0)


@subroutine(int64)
def _takes_plain(m: int, state: int) -> int:
    """Whether a state goes on with a byte that plain characters begin with."""
    row = word(m, FOLLOWING) + 1024 * state
    for byte in range(0x20, 256):
        if byte not in (0x22, 0x5C) and item(row, byte) != DEAD:
            return int64(1)
    return int64(0)


@subroutine(int64)
def _characters(m: int, v: int, loop: int, x: int, y: int, z: int, bits: int) -> int:
    """Add the tokens that go on in a string of counted characters. 0; 1: a walk must find them, since plain characters
    follow the string too; or what is less."""
    most, n_words = item(word(m, NODES) + 16 * loop, 2), word(v, MASK_WORDS)
    put_cell(word(m, WORK), 0, loop + 1, y, z)
    behind = closed(m, 1)
    if behind < 0 or _takes_plain(m, behind) != 0:
        return min(behind, int64(1))
    n = word(v, MOST_PLAIN)
    if most >= 0:
        n = min(n, most - y)
    unite(bits, word(v, PLAIN) + 4 * n_words * n, n_words)
    cells = word(m, WORK)
    put_cell(cells, 0, x, y, z)
    alone = interned_state(m, cells, 1, 0)
    if alone < 0:
        return alone
    return _walk(m, word(v, REST), 0, word(v, N_REST), alone, bits)


@subroutine(int64)
def _find_tokens(m: int, v: int, state: int, bits: int) -> int:
    """The tokens that may follow a state, into `bits`. 0, or what is less."""
    n_words, nodes, picked = word(v, MASK_WORDS), word(m, NODES), word(m, PICKED)
    for i in range(n_words):
        st_i32(bits + 4 * i, int32(0))
    at = word(m, STATES) + 16 * state
    cells, n, flags = word(m, STATE_CELLS) + 12 * item(at, 0), item(at, 1), item(at, 2)
    n_picked = 0
    for i in range(n):
        x, y, z = item(cells, 3 * i), item(cells, 3 * i + 1), item(cells, 3 * i + 2)
        node = nodes + 16 * x
        op = item(node, 0)
        if op == TOKENS:
            continue
        failed = int64(1)
        if op == TABLE:
            info = word(m, ROW_INFO) + 32 * item(node, 1)
            kind = ld_i64(info)
            end = _end_of(node)
            is_counted = item(nodes, 4 * end) == INC
            if kind == CHARACTER and is_counted:
                failed = _characters(m, v, item(nodes, 4 * end + 3), x, y, z, bits)
            elif kind in (KNOWN, KNOWN_BY_REST) and not is_counted:
                failed = _known(m, v, info, end, y, z, bits)
            elif kind == WIDE and not is_counted:
                st_i64(m + 8 * WANTED, item(node, 1))
                return int64(WANT_ROW)
        if failed < 0:
            return failed
        if failed == 1:
            put_cell(picked, n_picked, x, y, z)
            n_picked += 1
    if n_picked > 0:
        walked = state if n_picked == n else interned_state(m, picked, n_picked, 0)
        if walked < 0:
            return walked
        failed = _walk(m, word(v, TRIE), 0, word(v, N_TRIE), walked, bits)
        if failed < 0:
            return failed
    if flags & IS_COMPLETE:
        for i in range(word(v, N_ENDS)):
            add(bits, item(word(v, ENDS), i))
    for i in range(word(v, N_TWINS)):
        if has(bits, item(word(v, TWINS), 2 * i)):
            add(bits, item(word(v, TWINS), 2 * i + 1))
    for i in range(n if flags & HAS_SETS else 0):
        node = nodes + 16 * item(cells, 3 * i)
        if item(node, 0) == TOKENS:
            unite(bits, word(m, SET_BITS) + 4 * n_words * item(node, 1), n_words)
    return int64(0)


@subroutine(int64)
def _representative(m: int, v: int, state: int) -> int:
    """A state with the same tokens: where counted characters are far from both bounds, their number makes no
    difference. GROW where there is no room for it."""
    nodes, picked, longest = word(m, NODES), word(m, PICKED), word(v, LONGEST)
    at = word(m, STATES) + 16 * state
    cells, n = word(m, STATE_CELLS) + 12 * item(at, 0), item(at, 1)
    is_other = False
    for i in range(n):
        x, y, z = item(cells, 3 * i), item(cells, 3 * i + 1), item(cells, 3 * i + 2)
        node = nodes + 16 * x
        if item(node, 0) == TABLE:
            info = word(m, ROW_INFO) + 32 * item(node, 1)
            end = _end_of(node)
            if ld_i64(info) == CHARACTER and item(nodes, 4 * end) == INC:
                loop = nodes + 16 * item(nodes, 4 * end + 3)
                least, most = item(loop, 1), item(loop, 2)
                if most < 0:
                    most = int64(1) << 40
                count = y
                if y > least and most - y > longest:
                    count = least
                elif least - y > longest:
                    count = 0
                is_other = is_other or count != y
                y = count
        put_cell(picked, i, x, y, z)
    if not is_other:
        return state
    sort(picked, n)
    return interned_state(m, picked, n, item(at, 2))


@subroutine(int64)
def _tokens(m: int, v: int, state: int, bits: int) -> int:
    n_words = word(v, MASK_WORDS)
    known = item(word(m, STATES), 4 * state + 3)
    if known < 0:
        other = _representative(m, v, state)
        if other < 0:
            return other
        known = item(word(m, STATES), 4 * other + 3)
        if known < 0:
            known = word(m, N_MASKS)
            if known >= word(m, MAX_MASKS):
                return int64(WANT_MASKS)
            failed = _find_tokens(m, v, other, word(m, MASKS) + 4 * n_words * known)
            if failed < 0:
                return failed
            st_i64(m + 8 * N_MASKS, known + 1)
            put(word(m, STATES), 4 * other + 3, known)
        put(word(m, STATES), 4 * state + 3, known)
    copy(bits, word(m, MASKS) + 4 * n_words * known, n_words)
    return int64(0)


@subroutine(int64)
def state_tokens(m: int, v: int, state: int, bits: int) -> int:
    """The tokens that may follow a state: uint32 [mask_words] at `bits`. 0, or TOO_MANY, TOO_LONG; or GROW, WANT_ROW,
    WANT_MASKS: then what is wanted must be made, and this called again."""
    return paid(m, _tokens(m, v, state, bits))

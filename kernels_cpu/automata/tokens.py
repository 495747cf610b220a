"""Which tokens may follow a state of an automaton, and the state after one: a walk of the vocabulary's trie.

A token is allowed if its bytes lead somewhere. Most are found without a walk: what stays within the DFA of a terminal
is the same wherever that terminal is called (`row_tokens`, kept by whoever owns the record), so that only what leaves
it is walked, from the places where it leaves; and plain characters within a string of counted characters are tokens of
at most so many of them.
"""

from __future__ import annotations

from numba import int32, int64

from kernels_cpu.automata.layout import (
    CHARACTER,
    DEAD,
    ENDS,
    FOLLOWING,
    HAS_SETS,
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
    TOKEN_BYTES,
    TOKEN_STARTS,
    TRIE,
    TWINS,
    WANT_MASKS,
    WANT_ROW,
    WANTED,
    WAY,
    WIDE,
    WORK,
)
from kernels_cpu.automata.states import (
    INC,
    TABLE,
    TOKENS,
    after_byte,
    closed,
    interned_state,
    item,
    put,
    put_cell,
    sort,
    start,
    word,
)
from kernels_cpu.compile import routine
from kernels_cpu.simd import ld_i32, ld_i64, ld_u8, st_i32, st_i64, st_u8
from kernels_cpu.subroutine import subroutine


@subroutine(int64, inlined=True)
def _has(bits: int, token: int) -> int:
    return (int64(ld_i32(bits + 4 * (token >> 5))) >> (token & 31)) & 1


@subroutine(inlined=True)
def _add(bits: int, token: int) -> None:
    at = bits + 4 * (token >> 5)
    st_i32(at, ld_i32(at) | int32(1 << (token & 31)))


@subroutine(inlined=True)
def _unite(bits: int, others: int, n_words: int) -> None:
    for i in range(n_words):
        st_i32(bits + 4 * i, ld_i32(bits + 4 * i) | ld_i32(others + 4 * i))


@subroutine(inlined=True)
def _copy(bits: int, others: int, n_words: int) -> None:
    for i in range(n_words):
        st_i32(bits + 4 * i, ld_i32(others + 4 * i))


@subroutine(int64)
def _walk(m: int, trie: int, begin: int, end: int, state: int, bits: int) -> int:
    """Add the tokens of a trie's nodes begin ... end, below a node that `state` is at. 0, or what is less."""
    way, depth = word(m, WAY), 0
    put(way, 0, end)
    put(way, 1, state)
    i = begin
    while i < end:
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
            _add(bits, token)
        if size > 1:
            depth += 1
            put(way, 2 * depth, i + size)
            put(way, 2 * depth + 1, new)
        i += 1
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
            _add(bits, token)
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
    _unite(bits, ld_i64(info + 8), word(v, MASK_WORDS))
    exits, n_exits = ld_i64(info + 16), ld_i64(info + 24)
    if n_exits == 0:
        return int64(0)
    put_cell(word(m, WORK), 0, end, y, z)
    behind = closed(m, 1)
    if behind <= 0:
        return behind
    trie = word(v, REST if ld_i64(info) == KNOWN_BY_REST else TRIE)
    row = word(m, FOLLOWING) + 1024 * behind
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
    _unite(bits, word(v, PLAIN) + 4 * n_words * n, n_words)
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
            _add(bits, item(word(v, ENDS), i))
    for i in range(word(v, N_TWINS)):
        if _has(bits, item(word(v, TWINS), 2 * i)):
            _add(bits, item(word(v, TWINS), 2 * i + 1))
    for i in range(n if flags & HAS_SETS else 0):
        node = nodes + 16 * item(cells, 3 * i)
        if item(node, 0) == TOKENS:
            _unite(bits, word(m, SET_BITS) + 4 * n_words * item(node, 1), n_words)
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


@routine("int64(int64, int64, int64, int64)")
def state_tokens(m: int, v: int, state: int, bits: int) -> int:
    """The tokens that may follow a state: uint32 [mask_words] at `bits`. 0, or GROW, TOO_MANY, WANT_ROW, WANT_MASKS:
    then what is wanted must be made, and this called again."""
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
    _copy(bits, word(m, MASKS) + 4 * n_words * known, n_words)
    return int64(0)


@routine("int64(int64)")
def start_state(m: int) -> int:
    """The state before the first byte, GROW or TOO_MANY."""
    return start(m)


@subroutine(int64)
def _after(m: int, state: int, data: int, n: int) -> int:
    i = 0
    while i < n and state > 0:
        state = after_byte(m, state, int64(ld_u8(data + i)))
        i += 1
    return state


@routine("int64(int64, int64, int64, int64)")
def bytes_state(m: int, state: int, data: int, n: int) -> int:
    """The state after `n` bytes at `data`: DEAD where they do not fit, GROW, TOO_MANY."""
    return _after(m, state, data, n)


@subroutine(int64)
def _after_set(m: int, v: int, state: int, token: int) -> int:
    """The state after a token that is taken as one of a set."""
    n_words, nodes, work = word(v, MASK_WORDS), word(m, NODES), word(m, WORK)
    at = word(m, STATES) + 16 * state
    cells, n = word(m, STATE_CELLS) + 12 * item(at, 0), item(at, 1)
    n_work = 0
    for i in range(n):
        node = nodes + 16 * item(cells, 3 * i)
        if item(node, 0) == TOKENS and _has(word(m, SET_BITS) + 4 * n_words * item(node, 1), token) != 0:
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


@routine("int64(int64, int64, int64, int64)")
def token_state(m: int, v: int, state: int, token: int) -> int:
    """The state after a token: DEAD where it does not fit, GROW, TOO_MANY."""
    first, end = item(word(v, TOKEN_STARTS), token), item(word(v, TOKEN_STARTS), token + 1)
    new = _after(m, state, word(v, TOKEN_BYTES) + first, end - first) if end > first else int64(DEAD)
    if new < 0 or (item(word(m, STATES), 4 * state + 2) & HAS_SETS) == 0:
        return new
    other = _after_set(m, v, state, token)
    if other <= 0:
        return new if other == 0 else other
    return other if new == DEAD else _united(m, new, other)


@routine("int64(int64, int64, int64, int64)")
def forced_bytes(m: int, state: int, out: int, most: int) -> int:
    """How many bytes are the only ones that can follow, up to `most`, written to `out`; GROW, TOO_MANY."""
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

"""What is computed once of a vocabulary, compiled: its trie; and once of a DFA: where plain text may go on for ever."""

from __future__ import annotations

from numba import int64

from kernels_cpu.automata.cells import item, put
from kernels_cpu.compile import routine
from kernels_cpu.simd import ld_u8, st_u8
from kernels_cpu.subroutine import subroutine

PLACES = 10
"""Within a character: how many there are."""


@subroutine(int64, inlined=True)
def _n_shared(data: int, a: int, n_a: int, b: int, n_b: int) -> int:
    """How many bytes two words of `data` share at their beginning."""
    n = min(n_a, n_b)
    i = 0
    while i < n and ld_u8(data + a + i) == ld_u8(data + b + i):
        i += 1
    return i


@routine("int64(int64, int64, int64, int64, int64, int64, int64)")
def build_trie(data: int, starts: int, ids: int, n: int, nodes: int, way: int, twins: int) -> int:
    """The trie of `n` words, sorted, none of them empty, in preorder without its root.

    data: uint8; starts: int32 [n][2], first byte and length of each; ids: int32 [n]. nodes: int32 [total bytes][2]
    (byte and size of the subtree << 8, id or -1); way: int32 [longest]; twins: int32 [n][2], (a word's id, that of an
    equal one). The number of nodes, and of twins << 32.
    """
    n_nodes, depth, n_twins = 0, 0, 0
    before, n_before = 0, 0
    for i in range(n):
        first, length = item(starts, 2 * i), item(starts, 2 * i + 1)
        n_same = _n_shared(data, before, n_before, first, length)
        if i > 0 and n_same == length and length == n_before:
            put(twins, 2 * n_twins, item(nodes, 2 * (n_nodes - 1) + 1))
            put(twins, 2 * n_twins + 1, item(ids, i))
            n_twins += 1
            continue
        while depth > n_same:
            depth -= 1
            node = item(way, depth)
            put(nodes, 2 * node, item(nodes, 2 * node) | ((n_nodes - node) << 8))
        while depth < length:
            put(way, depth, n_nodes)
            put(nodes, 2 * n_nodes, int64(ld_u8(data + first + depth)))
            put(nodes, 2 * n_nodes + 1, -1)
            n_nodes += 1
            depth += 1
        put(nodes, 2 * (n_nodes - 1) + 1, item(ids, i))
        before, n_before = first, length
    while depth > 0:
        depth -= 1
        node = item(way, depth)
        put(nodes, 2 * node, item(nodes, 2 * node) | ((n_nodes - node) << 8))
    return n_nodes | (n_twins << 32)


@subroutine(int64)
def _list_ways(classes: int, plain: int, seen: int, ways: int) -> int:
    """The distinct (place, class, place behind) of plain bytes, place by place: how many, where each place's begin."""
    n = 0
    for place in range(PLACES):
        put(ways, place, n)
        for byte in range(256):
            behind = item(plain, 256 * place + byte)
            if behind >= 0:
                kind = int64(ld_u8(classes + byte))
                mark = seen + PLACES * (256 * place + kind) + behind
                if ld_u8(mark) == 0:
                    st_u8(mark, 1)
                    put(ways, 2 * PLACES + 2 * n, kind)
                    put(ways, 2 * PLACES + 2 * n + 1, behind)
                    n += 1
    put(ways, PLACES, n)
    return n


@subroutine(int64)
def _goes_on(after: int, n_classes: int, ways: int, alive: int, row: int, place: int) -> int:
    """Whether every plain byte leads to a row and place within a character that still count as alive."""
    for way in range(item(ways, place), item(ways, place + 1)):
        new = item(after, n_classes * row + item(ways, 2 * PLACES + 2 * way))
        if new < 0 or ld_u8(alive + PLACES * new + item(ways, 2 * PLACES + 2 * way + 1)) == 0:
            return int64(0)
    return int64(1)


@routine("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def plain_rows(
    after: int, n_rows: int, n_classes: int, classes: int, plain: int, seen: int, ways: int, alive: int
) -> None:
    """In which rows of a DFA plain text never dies: the first column of `alive`, uint8 [n_rows][PLACES].

    after: int32 [n_rows][n_classes]; classes: uint8 [256]; plain: int32 [PLACES][256], the place within a character
    after a byte, or -1. Scratch: seen, uint8 [PLACES][256][PLACES], zeros; ways, int32 [2 * PLACES * 257].
    """
    _list_ways(classes, plain, seen, ways)
    for i in range(PLACES * n_rows):
        st_u8(alive + i, 1)
    is_changed = 1
    while is_changed != 0:
        is_changed = 0
        for i in range(PLACES * n_rows - 1, -1, -1):  # rows mostly lead to later ones
            if ld_u8(alive + i) != 0 and _goes_on(after, n_classes, ways, alive, i // PLACES, i % PLACES) == 0:
                st_u8(alive + i, 0)
                is_changed = 1

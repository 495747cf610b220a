"""Words, numbers and cells of three numbers in memory, and masks of bits; what they mean it does not know."""

from __future__ import annotations

from numba import int32, int64

from kernels_cpu.automata.layout import MOST_SPENT, SPENT
from kernels_cpu.simd import ld_i32, ld_i64, st_i32, st_i64
from kernels_cpu.subroutine import subroutine


@subroutine(int64, inlined=True)
def word(record: int, i: int) -> int:
    return ld_i64(record + 8 * i)


@subroutine(inlined=True)
def spend(m: int, cost: int) -> None:
    """Note what a part of the answer has cost."""
    st_i64(m + 8 * SPENT, ld_i64(m + 8 * SPENT) + cost)


@subroutine(int64, inlined=True)
def is_spent(m: int) -> int:
    """Whether the answer has cost too much."""
    return int64(ld_i64(m + 8 * SPENT) > MOST_SPENT)


@subroutine(int64, inlined=True)
def paid(m: int, answer: int) -> int:
    """The answer; if it is one, the next one costs what it costs from nothing."""
    if answer >= 0:
        st_i64(m + 8 * SPENT, 0)
    return answer


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
def is_after(cells: int, i: int, x: int, y: int, z: int) -> int:
    """Whether cell `i` comes after (x, y, z)."""
    if item(cells, 3 * i) != x:
        return int64(item(cells, 3 * i) > x)
    if item(cells, 3 * i + 1) != y:
        return int64(item(cells, 3 * i + 1) > y)
    return int64(item(cells, 3 * i + 2) > z)


@subroutine(int64, inlined=True)
def are_equal(a: int, b: int, n_words: int) -> int:
    for i in range(n_words):
        if item(a, i) != item(b, i):
            return int64(0)
    return int64(1)


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
            while j >= gap and is_after(cells, j - gap, x, y, z) != 0:
                k = j - gap
                put_cell(cells, j, item(cells, 3 * k), item(cells, 3 * k + 1), item(cells, 3 * k + 2))
                j = k
            put_cell(cells, j, x, y, z)
        gap //= 3


@subroutine(int64, inlined=True)
def mixed(h: int, x: int) -> int:
    h = (h ^ x) * 0x2545F4914F6CDD1D
    return h ^ ((h >> 29) & 0x7FFFFFFFF)


@subroutine(int64, inlined=True)
def has(bits: int, token: int) -> int:
    return (int64(ld_i32(bits + 4 * (token >> 5))) >> (token & 31)) & 1


@subroutine(inlined=True)
def add(bits: int, token: int) -> None:
    at = bits + 4 * (token >> 5)
    st_i32(at, ld_i32(at) | int32(1 << (token & 31)))


@subroutine(inlined=True)
def unite(bits: int, others: int, n_words: int) -> None:
    for i in range(n_words):
        st_i32(bits + 4 * i, ld_i32(bits + 4 * i) | ld_i32(others + 4 * i))


@subroutine(inlined=True)
def copy(bits: int, others: int, n_words: int) -> None:
    for i in range(n_words):
        st_i32(bits + 4 * i, ld_i32(others + 4 * i))

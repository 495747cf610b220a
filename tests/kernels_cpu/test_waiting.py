"""Where rows of a tape wait for each other."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_cpu.ops import OWN_ROWS, elementwise
from kernels_cpu.waiting import ALL, ALWAYS, MANY_ROWS, Access, Buffer, TapeWriter


def buffer() -> Buffer:
    return Buffer(np.zeros(64, np.uint8), 64)


def write(writer: TapeWriter, *accesses: Access) -> None:
    writer.add(elementwise.scale, (), list(accesses))


def barriers(*rows: list[Access]) -> list[int]:
    writer = TapeWriter()
    for accesses in rows:
        write(writer, *accesses)
    return [row.barrier_from for row in writer.rows]


def test_the_same_part_in_the_same_thread_needs_no_barrier() -> None:
    x, y = buffer(), buffer()
    assert barriers([Access(x, "rows", True)], [Access(x, "rows"), Access(y, "rows", True)]) == [0, 0]


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (("rows", True), ("columns", False), True),
        (("rows", False), ("columns", True), True),
        (("rows", True), ("columns", True), True),
        (("rows", False), ("columns", False), False),
        ((ALL, True), (ALL, False), True),
        ((ALL, False), (ALL, False), False),
    ],
)
def test_other_parts_need_one_unless_both_only_read(
    first: tuple[str, bool], second: tuple[str, bool], waits: bool
) -> None:
    x = buffer()
    assert barriers([Access(x, *first)], [Access(x, *second)]) == [int(waits), 0]


def test_a_barrier_settles_what_came_before_it() -> None:
    x, y = buffer(), buffer()
    rows = [Access(x, "a", True), Access(y, "a", True)], [Access(x, "b")], [Access(y, "b")]
    assert barriers(*map(list, rows)) == [ALWAYS, 0, 0]


def test_a_split_of_few_rows_of_its_own() -> None:
    """Threads that keep copies when rows are few wait only from more rows on."""
    x = buffer()
    assert barriers([Access(x, "rows", True, "own")], [Access(x, ALL, few="own")]) == [MANY_ROWS, 0]
    assert barriers([Access(x, "rows", True)], [Access(x, "rows", few=ALL)]) == [ALWAYS, 0]


def test_a_barrier_of_many_rows_settles_nothing_for_few() -> None:
    x, y = buffer(), buffer()
    rows = [
        [Access(x, "rows", True, "own"), Access(y, "a", True)],
        [Access(x, ALL, few="own")],
        [Access(y, "b")],
    ]
    assert barriers(*rows) == [MANY_ROWS, ALWAYS, 0]


def test_what_is_released_comes_back_when_all_steps_have_waited() -> None:
    writer, x, released = TapeWriter(), buffer(), list[int]()
    write(writer, Access(x, "rows", True, "own"))
    writer.after_barrier(lambda: released.append(1))
    write(writer, Access(x, ALL, few="own"))
    assert released == []
    write(writer, Access(x, "columns", True))
    assert released == [1]


def test_barriers_are_counted_by_the_rows_of_a_step() -> None:
    writer, x = TapeWriter(), buffer()
    write(writer, Access(x, "rows", True, "own"))
    write(writer, Access(x, ALL, few="own"))
    write(writer, Access(x, "columns", True))
    assert [writer.n_barriers(n) for n in (1, OWN_ROWS, OWN_ROWS + 1)] == [1, 1, 2]
    tape = writer.tape()
    assert tape[:, 1].tolist() == [MANY_ROWS, ALWAYS, 0]

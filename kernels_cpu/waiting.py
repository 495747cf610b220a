"""Finds where the threads that run a tape must wait for each other; it does not know what its rows compute.

Each row says which buffers it touches and how its threads divide them. Two rows that divide a buffer alike need no
barrier between them: a thread then reads only what it wrote itself. Steps of few rows divide some buffers otherwise
than steps of many (see kernels_cpu.ops), so that some barriers are needed only from a number of rows on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_cpu.compile import Kernel
from kernels_cpu.ops import OWN_ROWS
from kernels_cpu.team import BARRIER_FROM, FIRST_ARGUMENT, KERNEL

ALL = "all"
"""A split: every thread touches everything."""

ALWAYS, MANY_ROWS = 1, OWN_ROWS + 1
"""From how many rows of a step on a barrier is needed."""


@dataclass(eq=False)
class Buffer:
    """Memory of the workspace: rows `stride` bytes apart. Zeros at first; pad columns stay zero.

    `own` is the distance between the copies of the value that the threads keep in steps of few rows, 0 if they share
    one; it changes with the value that is in the buffer.
    """

    array: npt.NDArray[Any]
    stride: int
    own: int = 0

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)


@dataclass(frozen=True)
class Access:
    """That a row of the tape touches a buffer, and how its threads divide it.

    `split` names the division, `few` that of steps of few rows where it is another. Rows with the same split of a
    buffer touch the same part of it in the same thread.
    """

    buffer: Buffer
    split: str
    writes: bool = False
    few: str | None = None


def columns_split(n_units: int, before: int = 0, after: int = 0) -> str:
    """The split of a product's result: its units of 32 columns, in a list with those of the products beside it."""
    return f"columns {before}+{n_units}+{after}"


def by_rows(buffer: Buffer, own: bool, writes: bool = False) -> Access:
    """What a row that goes by rows touches; `own` says that each thread does all rows when they are few."""
    few = "own" if buffer.own else ALL if own else "rows"
    return Access(buffer, "rows", writes, few)


@dataclass
class Row:
    """A row of the tape before it has addresses of code; `calls` are kernels it calls, its last arguments."""

    kernel: Kernel
    args: tuple[int, ...]
    calls: tuple[Kernel, ...] = ()
    barrier_from: int = 0


@dataclass
class _Touched:
    """What has happened to a buffer since the last barrier."""

    readers: set[str] = field(default_factory=set)
    writers: set[str] = field(default_factory=set)

    def conflicts(self, split: str, writes: bool) -> bool:
        others = self.writers | self.readers if writes else self.writers
        return any(other != split or other == ALL for other in others)


class _Since:
    """What has happened to all buffers since the last barrier, in steps of one kind."""

    def __init__(self) -> None:
        self._touched: dict[Buffer, _Touched] = {}

    def conflicts(self, accesses: list[tuple[Buffer, str, bool]]) -> bool:
        return any(self._touched[b].conflicts(split, writes) for b, split, writes in accesses if b in self._touched)

    def note(self, accesses: list[tuple[Buffer, str, bool]]) -> None:
        for buffer, split, writes in accesses:
            touched = self._touched.setdefault(buffer, _Touched())
            (touched.writers if writes else touched.readers).add(split)

    def clear(self) -> None:
        self._touched.clear()


class TapeWriter:
    """Collects rows and finds where they must wait."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._few, self._many = _Since(), _Since()
        self._freed: list[Callable[[], None]] = []

    def add(
        self, kernel: Kernel, args: tuple[int, ...], accesses: list[Access], calls: tuple[Kernel, ...] = ()
    ) -> None:
        """Append a row; the row before gets a barrier if this one depends on other threads' work."""
        few = [(a.buffer, a.few or a.split, a.writes) for a in accesses]
        many = [(a.buffer, a.split, a.writes) for a in accesses]
        if self._few.conflicts(few):
            self._wait(ALWAYS)
        elif self._many.conflicts(many):
            self._wait(MANY_ROWS)
        self._few.note(few)
        self._many.note(many)
        self.rows.append(Row(kernel, args, calls))

    def _wait(self, barrier_from: int) -> None:
        """Let the threads meet after the last row; what was released may be used again once they always do."""
        self.rows[-1].barrier_from = barrier_from
        self._many.clear()
        if barrier_from == ALWAYS:
            self._few.clear()
            for free in self._freed:
                free()
            self._freed.clear()

    def after_barrier(self, action: Callable[[], None]) -> None:
        """Call `action` at the next barrier."""
        self._freed.append(action)

    def n_barriers(self, n_rows: int) -> int:
        """How often the threads wait for each other within a step of n_rows rows."""
        return sum(0 < row.barrier_from <= n_rows for row in self.rows)

    def kernels(self) -> list[Kernel]:
        """All that the rows call, as often as they do."""
        return [k for row in self.rows for k in (row.kernel, *row.calls)]

    def tape(self) -> npt.NDArray[np.int64]:
        """The rows as int64 [n_rows, words]. Compiles what is not compiled yet."""
        words = FIRST_ARGUMENT + max(len(row.args) + len(row.calls) for row in self.rows)
        tape = np.zeros((len(self.rows), -(-words // 8) * 8), np.int64)
        for line, row in zip(tape, self.rows, strict=True):
            line[KERNEL], line[BARRIER_FROM] = row.kernel.address(), row.barrier_from
            args = (*row.args, *(called.address() for called in row.calls))
            line[FIRST_ARGUMENT : FIRST_ARGUMENT + len(args)] = args
        return tape

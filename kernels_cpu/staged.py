"""A tape that is left between stages: what rows have become by then is kept elsewhere, and put back when they go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kernels_cpu.graph import StagedRows, Value
from kernels_cpu.ops import OWN_ROWS
from kernels_cpu.waiting import Buffer

Run = Callable[[int, int, int], None]
"""Runs the lines first .. end - 1 of a tape for so many rows."""


class Place:
    """Where a value lies at a cut; what else uses the memory before and after does not matter here."""

    def __init__(self, buffer: Buffer) -> None:
        n_rows = len(buffer.array) // buffer.stride
        self._rows: npt.NDArray[np.uint8] = buffer.array[: n_rows * buffer.stride].reshape(n_rows, -1)
        self._is_own = buffer.own > 0

    def take(self, first: int, end: int) -> npt.NDArray[np.uint8]:
        """A copy of rows, as a step of any size left them."""
        return self._rows[first:end].copy()

    def put(self, first: int, rows: npt.NDArray[np.uint8]) -> None:
        """Rows for the next lines, from `first` on."""
        self._rows[first : first + len(rows)] = rows

    def share_out(self, n_rows: int, n_threads: int) -> None:
        """Before lines with few rows: give all threads what the first has, whose copy is where many rows lie."""
        if self._is_own:
            for thread in range(1, n_threads):
                self._rows[OWN_ROWS * thread : OWN_ROWS * thread + n_rows] = self._rows[:n_rows]


@dataclass(frozen=True)
class TapeCut:
    """The line that the next stage begins with, and where the values are that cross."""

    line: int
    places: dict[Value, Place]


def run_staged(cuts: list[TapeCut], n_lines: int, n_rows: int, staged: StagedRows, n_threads: int, run: Run) -> None:
    """Run a tape for `n_rows` rows, of which the last ones go only through the stages that `staged` says.

    It holds what they are afterwards, unless they are through.
    """
    first = staged.first
    edges = (0, staged.begin, staged.end, len(cuts) + 1)
    for part, (begin, end) in enumerate(pairwise(edges)):
        n = n_rows if part == 1 else first
        if begin == end or n == 0:
            continue
        if begin > 0:
            places = cuts[begin - 1].places
            if part == 1:
                for value, place in places.items():
                    place.put(first, staged.values[value])
            if n <= OWN_ROWS:
                for place in places.values():
                    place.share_out(n, n_threads)
        run(_line(cuts, begin, n_lines), _line(cuts, end, n_lines), n)
        if part == 1 and end <= len(cuts):
            staged.values.clear()
            staged.values.update({v: place.take(first, n_rows) for v, place in cuts[end - 1].places.items()})


def _line(cuts: list[TapeCut], stage: int, n_lines: int) -> int:
    """The first line of a stage."""
    return 0 if stage == 0 else cuts[stage - 1].line if stage <= len(cuts) else n_lines

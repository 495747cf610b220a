"""Runs single kernels on teams of threads, through a tape of one or more rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kernels_cpu.compile import Kernel
from kernels_cpu.team import Team


def _word(argument: Any) -> int:
    """An argument as the int64 of a tape: arrays by address, floats by the bits of a float32."""
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data
    if isinstance(argument, float):
        return int(np.float32(argument).view(np.int32))
    return int(argument)


def _tape(calls: list[tuple[Any, ...]]) -> np.ndarray:
    tape = np.zeros((len(calls), 34), np.int64)
    for row, (kernel, *arguments) in zip(tape, calls, strict=True):
        row[:2] = kernel.address(), 1
        row[2 : 2 + len(arguments)] = [_word(a) for a in arguments]
    return tape


Run = Callable[..., None]


@pytest.fixture(scope="session")
def run_tape() -> Iterator[Run]:
    """run_tape([(kernel, arguments...), ...], n_threads): every row in turn, a barrier after each."""
    teams: dict[int, Team] = {}

    def run(calls: list[tuple[Any, ...]], n_threads: int = 1) -> None:
        if n_threads not in teams:
            teams[n_threads] = Team(n_threads)
        teams[n_threads].run(_tape(calls))

    yield run
    for team in teams.values():
        team.close()


@pytest.fixture(scope="session")
def run_kernel(run_tape: Run) -> Run:
    """run_kernel(kernel, arguments..., n_threads=1): one row."""

    def run(kernel: Kernel, *arguments: Any, n_threads: int = 1) -> None:
        run_tape([(kernel, *arguments)], n_threads)

    return run


@pytest.fixture(scope="session")
def padded() -> Callable[..., np.ndarray]:
    """padded(x, more=0): float32 [n, cols] as a value buffer, its stride a multiple of 128 bytes, padding zero."""

    def make(x: np.ndarray, more: int = 0) -> np.ndarray:
        n, cols = x.shape
        buffer = np.zeros((max(n, 1), (-(-cols // 32) + more) * 32), np.float32)
        buffer[:n, :cols] = x
        return buffer

    return make

"""A team of threads that runs a tape: one nogil call for the caller, parked threads beside it.

It knows nothing of what the rows of a tape compute. Between steps the threads spin briefly, so that
the next token starts at once, and then sleep in Python until the next step wakes them.
"""

from __future__ import annotations

import threading

import numpy as np
from numba import int64

from kernels_cpu.compile import Kernel, routine, set_up
from kernels_cpu.simd import ld_i64, st_i64
from kernels_cpu.subroutine import subroutine
from kernels_cpu.sync import atomic_add, atomic_exchange, atomic_load, barrier, call_kernel, pause

# Words of the team's state; each word that threads write has a cache line (8 words) of its own.
BARRIER, JOB, TAPE, N_LINES, LINE_BYTES, N_ROWS, STOP, PARKED = 0, 16, 24, 25, 26, 27, 28, 32
LOOKS_BEFORE_PARKING = 4000  # about 2 ms of yielding: longer than sampling takes between two tokens

# Layout of a tape's row: word 0 the kernel, word 1 the fewest rows of a step from which a barrier follows (0: never),
# then the kernel's arguments.
KERNEL, BARRIER_FROM, FIRST_ARGUMENT = 0, 1, 2


@subroutine(inlined=True)
def _run_rows(state: int, thread: int, n_threads: int) -> None:
    """A thread's share of the job, and the meeting with the others at its end."""
    row, n_rows = ld_i64(state + 8 * TAPE), ld_i64(state + 8 * N_ROWS)
    line_bytes = ld_i64(state + 8 * LINE_BYTES)
    for _ in range(ld_i64(state + 8 * N_LINES)):
        call_kernel(ld_i64(row), row, thread, n_threads)
        barrier_from = ld_i64(row + 8 * BARRIER_FROM)
        if barrier_from != 0 and n_rows >= barrier_from:
            barrier(state + 8 * BARRIER, n_threads)
        row += line_bytes
    barrier(state + 8 * BARRIER, n_threads)


@subroutine(int64, inlined=True)
def _publish(state: int, n_threads: int) -> int:
    """Announce the job; gives how many threads were parked, each marked in the word beside its flag."""
    atomic_add(state + 8 * JOB, 1)
    n_parked = 0
    for thread in range(1, n_threads):
        parked = state + 8 * (PARKED + 8 * thread)
        was = atomic_exchange(parked, 0)
        st_i64(parked + 8, was)
        n_parked += was
    return n_parked


@routine("void(int64, int64)")
def _lead(state: int, n_threads: int) -> None:
    """The caller's share of a job that is announced."""
    _run_rows(state, 0, n_threads)


@routine("int64(int64, int64, int64, int64, int64, int64)")
def _run(state: int, n_threads: int, tape: int, n_lines: int, line_bytes: int, n_rows: int) -> int:
    """Announce a job and, unless threads must be woken for it first, run it; gives how many must."""
    st_i64(state + 8 * TAPE, tape)
    st_i64(state + 8 * N_LINES, n_lines)
    st_i64(state + 8 * LINE_BYTES, line_bytes)
    st_i64(state + 8 * N_ROWS, n_rows)
    n_parked = _publish(state, n_threads)
    if n_parked == 0:
        _run_rows(state, 0, n_threads)
    return n_parked


@routine("int64(int64, int64)")
def _stop(state: int, n_threads: int) -> int:
    """Announce the end; gives how many threads must be woken for it."""
    st_i64(state + 8 * STOP, 1)
    return _publish(state, n_threads)


@routine("int64(int64, int64, int64, int64)")
def _follow(state: int, thread: int, n_threads: int, seen: int) -> int:
    """A worker's life until it parks: gives the number of the last job done, or -1 to stop."""
    looks = 0
    while True:
        if atomic_load(state + 8 * JOB) != seen:
            seen += 1
            if ld_i64(state + 8 * STOP) != 0:
                return -1
            _run_rows(state, thread, n_threads)
            looks = 0
        elif looks > LOOKS_BEFORE_PARKING:
            parked = state + 8 * (PARKED + 8 * thread)
            atomic_exchange(parked, 1)
            # A job published before the flag was raised wakes nobody: look once more. Where the
            # publisher has taken the flag, its wake-up is on the way and must be waited for.
            if atomic_load(state + 8 * JOB) == seen or atomic_exchange(parked, 0) == 0:
                return seen
            looks = 0
        else:
            pause(looks)
            looks += 1


ROUTINES: tuple[Kernel, ...] = (_lead, _run, _stop, _follow)
"""What a team calls: to be compiled together with the kernels."""


def load_cached() -> None:
    """Set Numba up and load the routines that are in the disk cache: for a process that has time now and none later."""
    set_up()
    for one in ROUTINES:
        if one.is_cached():
            one.load()


class Team:
    """`n_threads` threads, the caller among them. `run` is not reentrant; `close` ends the others."""

    def __init__(self, n_threads: int) -> None:
        for one in ROUTINES:
            one.load()  # now, and not in several threads at once
        self.n_threads = n_threads
        self._state = np.zeros(PARKED + 8 * (n_threads + 1), np.int64)
        self._address = int(self._state.ctypes.data)
        self._tape, self._lines = np.zeros((0, 0), np.int64), (0, 0, 0)
        self._wake = [threading.Semaphore(0) for _ in range(n_threads)]
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"kernels-{i}", daemon=True)
            for i in range(1, n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, thread: int) -> None:
        seen = 0
        while seen >= 0:
            seen = _follow(self._address, thread, self.n_threads, seen)
            if seen >= 0:
                self._wake[thread].acquire()

    def _wake_parked(self) -> None:
        for thread in range(1, self.n_threads):
            if self._state[PARKED + 8 * thread + 1]:
                self._wake[thread].release()

    def run(self, tape: np.ndarray, n_rows: int = 1, first: int = 0, end: int | None = None) -> None:
        """Run every row of `tape` (int64 [n_lines, words], C order), or those from `first` to before `end`, on all
        threads, without the GIL.

        `n_rows` is the number of rows of the step, which decides where threads must wait for each other.
        """
        if tape is not self._tape:
            self._tape, self._lines = tape, (int(tape.ctypes.data), len(tape), int(tape.strides[0]))
        address, n_lines, line_bytes = self._lines
        n_lines = (n_lines if end is None else end) - first
        if _run(self._address, self.n_threads, address + first * line_bytes, n_lines, line_bytes, n_rows):
            self._wake_parked()
            _lead(self._address, self.n_threads)

    def close(self) -> None:
        """End the worker threads and wait for them."""
        if _stop(self._address, self.n_threads):
            self._wake_parked()
        for thread in self._threads:
            thread.join()
        self._threads = []

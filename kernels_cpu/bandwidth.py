"""How fast this machine reads memory: the ceiling of decoding, measured by a kernel that only reads.

It does not know who compares what with it.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, share
from kernels_cpu.simd import f32x16, hsum, load, splat, st_f32
from kernels_cpu.team import Team

N_STREAMS = (1, 2, 4)
"""Runs of memory that a thread reads side by side: which number is fastest depends on the machine."""

UNIT_BYTES = 256


@kernel
def read_memory(row: int, thread: int, n_threads: int) -> None:
    """Add up float32 memory, split into one run a thread and each of these into `n_streams`, read in step.

    Arguments: address, n_bytes, sums (one float32 a thread, 64 bytes apart), n_streams. What is left over where
    units of 256 bytes do not divide evenly is not read.
    """
    n_units, n_streams = arg(row, 1) // UNIT_BYTES, arg(row, 3)
    first = share(n_units, thread, n_threads)
    n_each = (share(n_units, thread + 1, n_threads) - first) // n_streams
    start, run_bytes = arg(row, 0) + UNIT_BYTES * first, UNIT_BYTES * n_each
    a = splat(f32x16, 0.0)
    b, c, d = a, a, a
    for i in range(n_each):
        for stream in range(n_streams):
            p = start + stream * run_bytes + UNIT_BYTES * i
            a, b = a + load(f32x16, p), b + load(f32x16, p + 64)
            c, d = c + load(f32x16, p + 128), d + load(f32x16, p + 192)
    st_f32(arg(row, 2) + 64 * thread, hsum((a + b) + (c + d)))


class BandwidthMeter:
    """Reads `n_bytes` with `n_threads`; the default is more than any cache holds."""

    def __init__(self, n_threads: int, n_bytes: int = 2**28) -> None:
        self._memory, self._sums = np.ones(n_bytes // 4, np.float32), np.zeros(16 * n_threads, np.float32)
        self._team = Team(n_threads)
        addresses = read_memory.address(), 1, self._memory.ctypes.data, self._memory.nbytes, self._sums.ctypes.data
        self._tapes = {n: np.array([[*addresses, n]], np.int64) for n in N_STREAMS}

    def measure(self, n_passes: int = 3) -> float:
        """Bytes a second: the best of the numbers of streams, each by the median of its passes, taken in turn."""
        passes = [[self._read(n) for n in N_STREAMS] for _ in range(n_passes)]
        return max(statistics.median(speeds) for speeds in zip(*passes, strict=True))

    def _read(self, n_streams: int) -> float:
        start = time.perf_counter()
        self._team.run(self._tapes[n_streams])
        return self._memory.nbytes / (time.perf_counter() - start)

    def close(self) -> None:
        """End the threads."""
        self._team.close()

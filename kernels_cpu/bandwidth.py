"""How fast this machine reads memory: the ceiling of decoding, measured by a kernel that only reads."""

from __future__ import annotations

import time

import numpy as np

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, share
from kernels_cpu.simd import f32x16, hsum, load, st_f32
from kernels_cpu.team import Team


@kernel
def read_memory(row: int, thread: int, n_threads: int) -> None:
    """Add up float32 memory. Arguments: address, n_bytes (a multiple of 256), sums (one a thread, 64 bytes apart)."""
    start, n_units = arg(row, 0), arg(row, 1) // 256
    first, last = share(n_units, thread, n_threads), share(n_units, thread + 1, n_threads)
    a = load(f32x16, start)
    b, c, d = a, a, a
    for p in range(start + 256 * first, start + 256 * last, 256):
        a, b = a + load(f32x16, p), b + load(f32x16, p + 64)
        c, d = c + load(f32x16, p + 128), d + load(f32x16, p + 192)
    st_f32(arg(row, 2) + 64 * thread, hsum((a + b) + (c + d)))


class BandwidthMeter:
    """Reads 256 MiB with `n_threads`; more than any cache holds."""

    def __init__(self, n_threads: int) -> None:
        self._memory, self._sums = np.ones(2**26, np.float32), np.zeros(16 * n_threads, np.float32)
        self._team = Team(n_threads)
        self._tape = np.zeros((1, 8), np.int64)
        addresses = self._memory.ctypes.data, self._memory.nbytes, self._sums.ctypes.data
        self._tape[0, :5] = read_memory.address(), 1, *addresses

    def measure(self) -> float:
        """Bytes a second of one pass."""
        start = time.perf_counter()
        self._team.run(self._tape)
        return self._memory.nbytes / (time.perf_counter() - start)

    def close(self) -> None:
        """End the threads."""
        self._team.close()

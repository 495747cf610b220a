"""Compiled operations, a file for each group; a kernel's docstring says what its row of the tape holds."""

from __future__ import annotations

from numba import njit

from kernels_cpu.simd import ld_i64


@njit(inline="always")
def arg(row, i):  # type: ignore[no-untyped-def]
    """Argument i of the kernel whose row is at address `row`: an int64 after the two words of the executor."""
    return ld_i64(row + 8 * (2 + i))


@njit(inline="always")
def share(n, thread, n_threads):  # type: ignore[no-untyped-def]
    """Where the part of n items begins that falls to `thread` of `n_threads`; it ends where the next begins."""
    return n * thread // n_threads

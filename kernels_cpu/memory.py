"""Memory that counts only where it is touched, and memory given back; it does not know what is kept there."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+\s*(.*)")
_MADV_DONTNEED = 4


def untouched(n_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros, uint8 [n_bytes] from the beginning of a page. Pages take memory once they are written to: `np.zeros` may
    write to what the allocator had before."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return np.frombuffer(mmap.mmap(-1, max(n_bytes, 1), **private), np.uint8)[:n_bytes]


def give_back_code(library: str) -> int:
    """Let the pages of a shared library's code leave memory until they are used again; gives how many bytes left.

    `library` is a part of its path. Only Linux tells what is needed for this; elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return 0
    with contextlib.suppress(OSError, ValueError):
        given = 0
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        for first, end, resident in _clean_ranges(library):
            if madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_DONTNEED) == 0:
                given += resident
        return given
    return 0


def _clean_ranges(library: str) -> Iterator[tuple[int, int, int]]:
    """Address ranges of a mapped file that hold just what the file does, and their resident bytes.

    A page that was written to, as relocations are, would lose what was written.
    """
    lines = Path("/proc/self/smaps").read_text().splitlines()
    first = end = resident = 0
    is_candidate = False
    for line in lines:
        if mapping := _RANGE.match(line):
            first, end = int(mapping[1], 16), int(mapping[2], 16)
            is_candidate = library in mapping[4] and "w" not in mapping[3] and mapping[4].startswith("/")
        elif is_candidate and line.startswith("Rss:"):
            resident = 1024 * int(line.split()[1])
        elif is_candidate and line.startswith("Anonymous:") and line.split()[1] == "0":
            yield first, end, resident

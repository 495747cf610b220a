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

_RANGE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ +(/.*)$", re.MULTILINE)
# Bits of an entry of /proc/self/pagemap (the kernel's admin-guide/mm/pagemap).
_PRESENT, _SWAPPED, _OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))
_MADV_DONTNEED = 4


def untouched(n_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros, uint8 [n_bytes] from the beginning of a page. Pages take memory once they are written to: `np.zeros` may
    write to what the allocator had before."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return np.frombuffer(mmap.mmap(-1, max(n_bytes, 1), **private), np.uint8)[:n_bytes]


def give_back_code(library: str = ".so") -> int:
    """Let the pages of shared libraries leave memory until they are used again; gives how many bytes left.

    `library` is a part of the path of those that are meant. Only Linux tells what is needed for this; elsewhere nothing
    happens.
    """
    if not sys.platform.startswith("linux"):
        return 0
    given = 0
    with contextlib.suppress(OSError, ValueError):
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        for first, end, resident in _clean_ranges(library):
            if madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_DONTNEED) == 0:
                given += resident
    return given


def _clean_ranges(library: str) -> Iterator[tuple[int, int, int]]:
    """Address ranges of mapped files that hold just what the file does, and their resident bytes.

    A page that was written to, as relocations are, would lose what was written. (`smaps` says the same, thirty times
    slower: it describes every mapping of the process.)
    """
    mappings = _RANGE.findall(Path("/proc/self/maps").read_text())
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for first, end, access, path in mappings:
            if library in path and "w" not in access:
                begin, n_pages = int(first, 16), (int(end, 16) - int(first, 16)) // mmap.PAGESIZE
                pagemap.seek(begin // mmap.PAGESIZE * 8)
                pages = np.frombuffer(pagemap.read(n_pages * 8), np.uint64)
                present = pages & _PRESENT != 0
                if not np.any((pages & _SWAPPED != 0) | (present & (pages & _OF_FILE == 0))):
                    yield begin, int(end, 16), int(np.count_nonzero(present)) * mmap.PAGESIZE

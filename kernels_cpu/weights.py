"""The interleaved weights of a model: made once, kept in a cache file, mapped from then on.

A cache file is trusted only if its header names this very set of tensors and layouts, the checksum of
the header is right and the file has its full length; anything else is thrown away and made anew. It
is written beside its final name and renamed, so that a kill leaves no half file under that name.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import mmap
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from kernels_cpu.graph import Weight
from kernels_cpu.packing import pack, packed_shape

MAGIC = b"LLMPACK\0"
ALIGNMENT = 4096
HEADER_BYTES = 64
# No file takes this long to make: what is older was left by a process that was killed.
ABANDONED_S = 3600.0

Progress = Callable[[int, int], None]


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


class PackedWeights:
    """Weights by name, at fixed addresses for as long as this object lives."""

    def __init__(self, memory: npt.NDArray[np.uint8], offsets: dict[str, int]) -> None:
        self._memory = memory
        self._offsets = offsets
        self.nbytes = memory.nbytes

    def address(self, name: str) -> int:
        """Where the interleaved form of the tensor begins."""
        return int(self._memory.ctypes.data) + self._offsets[name]


def _layout(weights: list[Weight]) -> tuple[dict[str, int], int]:
    offsets, end = {}, ALIGNMENT
    for w in weights:
        offsets[w.name] = end
        end = _aligned(end + packed_shape(w).nbytes)
    return offsets, end


@functools.cache
def layout_digest() -> bytes:
    """4 bytes that change with the code that says how weights are packed."""
    package = Path(__file__).parent
    sources = [package / "packing.py", Path(__file__), *sorted((package / "quants").glob("*.py"))]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).digest()[:4]


def _header(weights: list[Weight], identity: str, total: int) -> bytes:
    """Magic, layout, length and digest of what is inside; the last 4 bytes are a checksum of the rest."""
    tensors = [(w.name, w.type_id, w.n_rows, w.n_cols, packed_shape(w).nbytes) for w in weights]
    digest = hashlib.sha256(json.dumps([identity, tensors]).encode()).digest()
    head = MAGIC + layout_digest() + total.to_bytes(8, "little") + digest
    head = head.ljust(HEADER_BYTES - 4, b"\0")
    return head + zlib.crc32(head).to_bytes(4, "little")


def _pack_into(
    weights: list[Weight], offsets: dict[str, int], memory: npt.NDArray[np.uint8], progress: Progress
) -> None:
    total, done = sum(packed_shape(w).nbytes for w in weights), 0

    def one(w: Weight) -> int:
        size = packed_shape(w).nbytes
        pack(w, memory[offsets[w.name] : offsets[w.name] + size])
        return size

    progress(0, total)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for size in pool.map(one, weights):
            done += size
            progress(done, total)


def _map_cached(path: Path, header: bytes, total: int) -> npt.NDArray[np.uint8] | None:
    try:
        with path.open("rb") as f:
            if f.read(HEADER_BYTES) != header or os.fstat(f.fileno()).st_size != total:
                return None
            return np.frombuffer(mmap.mmap(f.fileno(), total, access=mmap.ACCESS_READ), np.uint8)
    except OSError:
        return None


def _reserve(file: BinaryIO, n_bytes: int) -> None:
    """Give the file its length and its place on the disk: a disk that fills up later would end the process by a
    signal, on the first page that finds no place. Raises: OSError."""
    file.truncate(n_bytes)
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # this file system cannot
            raise


def _remove_abandoned(folder: Path) -> None:
    for partial in folder.glob("*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime > ABANDONED_S:
                partial.unlink()


def _build_cached(
    path: Path, header: bytes, weights: list[Weight], offsets: dict[str, int], total: int, progress: Progress
) -> npt.NDArray[np.uint8] | None:
    """Make the cache file; None when the folder cannot take it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        # Twice the size: a cache must not be what fills the user's disk.
        if shutil.disk_usage(path.parent).free < 2 * total:
            return None
        with partial.open("w+b") as f:
            _reserve(f, total)
            # Not a `with`: after an error its traceback still looks into the mapping, which then cannot be closed.
            mapped = mmap.mmap(f.fileno(), total)
            memory = np.frombuffer(mapped, np.uint8)
            _pack_into(weights, offsets, memory, progress)
            mapped.flush()
            del memory
            mapped.close()
            f.seek(0)
            f.write(header)
            f.flush()
            os.fsync(f.fileno())
        partial.replace(path)
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return _map_cached(path, header, total)


def pack_weights(
    weights: Iterable[Weight], path: Path | None = None, identity: str = "", progress: Progress | None = None
) -> PackedWeights:
    """Interleave all weights, or map them from the cache file `path` when it holds just these.

    `identity` names the source (the digest of the model); without a path, or when the disk is short, the
    result lives in memory. `progress(done, total)` counts bytes and is called only when there is work.

    Raises: KernelError for a type without kernels.
    """
    tensors = list(weights)
    offsets, total = _layout(tensors)
    report = progress or (lambda done, total: None)
    if path is not None:
        header = _header(tensors, identity, total)
        memory = _map_cached(path, header, total)
        if memory is None:
            memory = _build_cached(path, header, tensors, offsets, total, report)
        if memory is not None:
            return PackedWeights(memory, offsets)
    whole = np.zeros(total + ALIGNMENT, np.uint8)
    memory = whole[-whole.ctypes.data % ALIGNMENT :][:total]
    _pack_into(tensors, offsets, memory, report)
    return PackedWeights(memory, offsets)

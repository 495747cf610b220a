"""The interleaved weights of a model: made once, kept in a cache file, mapped from then on.

    magic 8 bytes | length u64 | digest of what is inside 32 | CRC of the sums 4 | CRC of these 52 bytes 4
    sums u32, one for each 2 MiB of tensors, up to the next page
    tensors, each from a page on

A cache file is trusted only if it names this very model, set of tensors and layout, has its full length, and if every
page of it gives the sum it had when it was written: anything else is thrown away and made anew. It is written beside
its final name and renamed, so that a kill leaves no half file under that name; a power cut may, and the sums tell.
What becomes of the files is for `cache_files` to say. It does not know how a tensor is packed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import mmap
import os
import shutil
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from kernels_cpu import cache_files
from kernels_cpu.graph import Weight
from kernels_cpu.packing import PackedShape, pack_groups, packed_shape, parts
from kernels_cpu.quants.format import GROUP_ROWS

MAGIC = b"LLMPACK\1"
ALIGNMENT = 4096
HEADER_BYTES = 56
CHUNK_BYTES = 2 << 20
# Files up to this size are checked at every load: it takes less time than the step that reads them next.
SMALL_BYTES = 256 << 20
# A larger file that nobody has written to since it was checked is not checked again for so long.
CHECKED_S = 86400.0
# More threads than these wait for memory.
MAX_THREADS = 8
PARTS_AHEAD = 4

Bytes = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightCache:
    """Where repacked weights are kept: the cache folder, the digest of the model's file, and the bytes that the weights
    of all models may take together (0: nothing is written)."""

    folder: Path
    identity: str
    max_bytes: float = math.inf

    @property
    def path(self) -> Path:
        """The file of this model."""
        return cache_files.packed_path(self.folder, self.identity)


class PackedWeights:
    """Weights by name, at fixed addresses for as long as this object lives."""

    def __init__(self, memory: Bytes, offsets: dict[str, int]) -> None:
        self._memory = memory
        self._offsets = offsets
        self.nbytes = memory.nbytes

    def address(self, name: str) -> int:
        """Where the interleaved form of the tensor begins."""
        return int(self._memory.ctypes.data) + self._offsets[name]


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


class _Layout:
    """Where the tensors of a model lie in a file, and the part of its header that says so."""

    def __init__(self, weights: list[Weight]) -> None:
        self.weights = weights
        self.shapes = [packed_shape(w) for w in weights]
        self.n_sums = -(-sum(_aligned(shape.nbytes) for shape in self.shapes) // CHUNK_BYTES)
        self.begin = end = _aligned(HEADER_BYTES + 4 * self.n_sums)
        self.offsets: dict[str, int] = {}
        for w, shape in zip(weights, self.shapes, strict=True):
            self.offsets[w.name] = end
            end = _aligned(end + shape.nbytes)
        self.n_bytes = end

    def name(self, identity: str) -> bytes:
        """The first 48 bytes of a file that holds these tensors of the model `identity`."""
        tensors = [
            (w.name, w.type_id, w.n_rows, w.n_cols, shape.nbytes)
            for w, shape in zip(self.weights, self.shapes, strict=True)
        ]
        what = json.dumps([cache_files.layout_digest(), identity, tensors]).encode()
        return MAGIC + self.n_bytes.to_bytes(8, "little") + hashlib.sha256(what).digest()

    def head(self, name: bytes, sums: bytes) -> bytes:
        """All that stands in front of the tensors."""
        fields = name + zlib.crc32(sums).to_bytes(4, "little")
        return (fields + zlib.crc32(fields).to_bytes(4, "little") + sums).ljust(self.begin, b"\0")


# ------------------------------------------------------------------------------- checking


def _sum(chunk: Bytes) -> int:
    """The CRC of the sums of 64-bit words of each page: at the speed of memory, it tells any flipped bit, and any page
    that is lost or another's."""
    return zlib.crc32(chunk.view(np.uint64).reshape(-1, ALIGNMENT // 8).sum(axis=1))


def _sums(tensors: Bytes) -> bytes:
    chunks = [tensors[at : at + CHUNK_BYTES] for at in range(0, tensors.nbytes, CHUNK_BYTES)]
    with ThreadPoolExecutor(_n_threads()) as pool:
        return np.array(list(pool.map(_sum, chunks)), "<u4").tobytes()


def _n_threads() -> int:
    return min(MAX_THREADS, os.cpu_count() or 1)


def _stamp(path: Path) -> list[int]:
    """What changes when somebody writes to a file."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _is_checked(path: Path) -> bool:
    """Whether a large file was checked lately and is the same since."""
    used = path.with_suffix(cache_files.USED_SUFFIX)
    try:
        record = json.loads(used.read_bytes())
        age_s = time.time() - float(record["checked_s"])
        return bool(record["stamp"] == _stamp(path)) and 0 <= age_s < CHECKED_S
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _record_use(path: Path, is_checked_now: bool) -> None:
    """Note that the file is used now, for those who must choose what to remove."""
    used = path.with_suffix(cache_files.USED_SUFFIX)
    with contextlib.suppress(OSError):
        if is_checked_now:
            used.write_text(json.dumps({"checked_s": time.time(), "stamp": _stamp(path)}))
        else:
            os.utime(used)


# -------------------------------------------------------------------------------- mapping


def _map_cached(path: Path, layout: _Layout, name: bytes) -> Bytes | None:
    """The file's bytes; None if there is none that can be trusted."""
    try:
        with path.open("rb") as f:
            head = f.read(layout.begin)
            sums = head[HEADER_BYTES : HEADER_BYTES + 4 * layout.n_sums]
            if head != layout.head(name, sums) or os.fstat(f.fileno()).st_size != layout.n_bytes:
                logger.warning("repacked weights are made anew: %s is damaged or of another model", path)
                return None
            memory = np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("repacked weights cannot be read: %s", error)
        return None
    is_checked = layout.n_bytes > SMALL_BYTES and _is_checked(path)
    if not is_checked and _sums(memory[layout.begin :]) != sums:
        logger.warning("repacked weights are made anew: %s is damaged", path)
        return None
    _record_use(path, not is_checked)
    return memory


# ------------------------------------------------------------------------------- building


def _source(data: Bytes) -> tuple[mmap.mmap, int] | None:
    """The mapped file that an array is a view of, and where it begins there."""
    base: object = data
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    buffer = base.obj if isinstance(base, memoryview) else base
    if not isinstance(buffer, mmap.mmap):
        return None
    return buffer, data.ctypes.data - np.frombuffer(buffer, np.uint8).ctypes.data


def _advise(data: Bytes, advice: str) -> None:
    """Tell the system that a source will be read, or will not be read again."""
    source = _source(data)
    if source is None or not hasattr(mmap, advice):
        return
    buffer, offset = source
    first = offset // mmap.PAGESIZE * mmap.PAGESIZE
    with contextlib.suppress(OSError, ValueError):
        buffer.madvise(getattr(mmap, advice), first, offset + data.nbytes - first)


def _packed(layout: _Layout, pool: ThreadPoolExecutor) -> Iterator[tuple[int, Bytes]]:
    """Every tensor in parts: where each lies in the file, in this order, and its bytes. Little is made ahead."""
    ahead: deque[tuple[int, Future[Bytes]]] = deque()
    for w, shape in zip(layout.weights, layout.shapes, strict=True):
        _advise(w.data, "MADV_WILLNEED")
        for first, end in parts(shape):
            at = layout.offsets[w.name] + first * shape.group_bytes
            ahead.append((at, pool.submit(_pack_part, w, shape, first, end)))
            if len(ahead) > PARTS_AHEAD * _n_threads():
                at, part = ahead.popleft()
                yield at, part.result()
    for at, part in ahead:
        yield at, part.result()


def _pack_part(weight: Weight, shape: PackedShape, first: int, end: int) -> Bytes:
    """Pack groups first .. end - 1, and give their source back."""
    packed = pack_groups(weight, shape, first, end)
    group = GROUP_ROWS * weight.row_bytes
    _advise(weight.data[first * group : end * group], "MADV_DONTNEED")
    return packed


def _pack_all(layout: _Layout, take: Callable[[int, Bytes], None], progress: Progress) -> None:
    """Pack, and give each part to `take(offset, bytes)`."""
    total, done = sum(shape.nbytes for shape in layout.shapes), 0
    progress(0, total)
    pool = ThreadPoolExecutor(_n_threads())
    try:
        for at, part in _packed(layout, pool):
            take(at, part)
            done += part.nbytes
            progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)


def _write(file: BinaryIO, layout: _Layout, name: bytes, progress: Progress) -> None:
    """Write a whole cache file. Nothing waits for the disk: what a power cut loses, the sums tell.

    Raises: OSError.
    """

    def take(at: int, part: Bytes) -> None:
        file.seek(at)
        file.write(part.data)

    file.truncate(layout.n_bytes)
    _pack_all(layout, take, progress)
    file.flush()
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sums = _sums(np.frombuffer(mapped, np.uint8, offset=layout.begin))
    file.seek(0)
    file.write(layout.head(name, sums))


def _make_room(cache: WeightCache, n_bytes: int) -> bool:
    """Whether the file may be written, after others made room for it."""
    if n_bytes > cache.max_bytes:
        return False
    cache_files.prune(cache.folder, cache.max_bytes - n_bytes, keep=cache.path)
    # Twice the size: a cache must not be what fills the user's disk.
    return shutil.disk_usage(cache.path.parent).free >= 2 * n_bytes


def _build_cached(cache: WeightCache, layout: _Layout, name: bytes, progress: Progress) -> Bytes | None:
    """Make the cache file and map it; None when the folder cannot take it."""
    path, partial = cache.path, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if not _make_room(cache, layout.n_bytes):
            return None
        handle, partial = tempfile.mkstemp(cache_files.PARTIAL_SUFFIX, f"{path.stem}.", path.parent)
        with os.fdopen(handle, "w+b") as file:
            _write(file, layout, name, progress)
        os.replace(partial, path)
        _record_use(path, True)
    except OSError as error:
        logger.warning("repacked weights cannot be kept in %s: %s", path.parent, error)
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                os.unlink(partial)
    return _map_cached(path, layout, name)


def _in_memory(layout: _Layout, progress: Progress) -> Bytes:
    whole = np.zeros(layout.n_bytes + ALIGNMENT, np.uint8)
    memory = whole[-whole.ctypes.data % ALIGNMENT :][: layout.n_bytes]

    def take(at: int, part: Bytes) -> None:
        memory[at : at + part.nbytes] = part

    _pack_all(layout, take, progress)
    return memory


def pack_weights(
    weights: Iterable[Weight], cache: WeightCache | None = None, progress: Progress | None = None
) -> PackedWeights:
    """Interleave all weights, or map them from the cache file when it holds just these.

    Without a cache, or where it is short of space, the result lives in memory. What was read of a mapped source is
    given back, so that there is one copy. `progress(done, total)` counts bytes and is called only when there is work.

    Raises: KernelError for a type without kernels.
    """
    layout = _Layout(list(weights))
    report = progress or (lambda done, total: None)
    memory = None
    if cache is not None:
        name = layout.name(cache.identity)
        memory = _map_cached(cache.path, layout, name)
        if memory is None:
            memory = _build_cached(cache, layout, name, report)
    if memory is None:
        memory = _in_memory(layout, report)
    return PackedWeights(memory, layout.offsets)

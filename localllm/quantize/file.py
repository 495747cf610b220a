"""From GGUF to quantised GGUF, piece by piece on all cores; which tensor gets which type is decided elsewhere.

Every thread reads, quantises and checks pieces of its own, while the caller's writes them in order: so nobody waits
for the disk, nor at the end of a tensor for the slowest of the others.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from localllm.errors import QuantizeError
from localllm.gguf.file import open_gguf
from localllm.gguf.writer import Writer
from localllm.quantize.imatrix import read_imatrix
from localllm.quantize.plan import Job, jobs_for, metadata_for, total_bytes
from localllm.quantize.presets import Preset
from localllm.quantize.slices import Bytes, Slice, compile_quantisers, slices_of

Progress = Callable[[int, int], None]
AHEAD = 2
"""Pieces a thread may be ahead of what is written."""


def _silent(done: int, total: int) -> None:
    return


def quantize(
    sources: Sequence[Path],
    destination: Path,
    preset: Preset,
    *,
    imatrix: Path | None = None,
    n_threads: int = 0,
    progress: Progress = _silent,
    allow_requantize: bool = False,
) -> None:
    """Write the model of `sources` (one GGUF, or all parts of one) to `destination`, which must not exist.

    `n_threads` 0 means one for each core this process may use; the file is the same for any number. `progress` is
    told bytes of the source that are done, and of all its tensors. Nothing is left of a file that is not finished.

    Raises:
        QuantizeError: what `jobs_for` and `read_imatrix` refuse, a file that cannot be read or written, a full disk.
        GGUFError: a source is not a GGUF, is damaged, or a part is missing.
    """
    matrix = read_imatrix(imatrix) if imatrix is not None else None
    with open_gguf(sources) as gguf:
        jobs = jobs_for(gguf, preset, matrix, allow_requantize)
        before, after = total_bytes(jobs)
        try:
            _check_space(destination, after)
            with Writer(destination, metadata_for(gguf, preset, matrix), [job.plan for job in jobs]) as writer:
                _write(writer, jobs, n_threads or _n_cores(), lambda done: progress(done, before))
                writer.finish()
        except OSError as error:
            raise _write_error(destination, error, after) from error


def _n_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _write(writer: Writer, jobs: Sequence[Job], n_threads: int, progress: Callable[[int], None]) -> None:
    compile_quantisers(jobs)
    pieces = (piece for job in jobs for piece in slices_of(job))
    done = 0
    progress(done)
    pool = ThreadPoolExecutor(n_threads, thread_name_prefix="quantize")
    try:
        for piece, data in _in_order(pool, pieces, n_threads * (1 + AHEAD)):
            writer.write(data)
            done += piece.n_bytes
            progress(done)
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(pool: ThreadPoolExecutor, pieces: Iterable[Slice], n_ahead: int) -> Iterator[tuple[Slice, Bytes]]:
    """What comes of the pieces, in their order, while up to `n_ahead` others are being made."""
    waiting: deque[tuple[Slice, Future[Bytes]]] = deque()
    for piece in pieces:
        waiting.append((piece, pool.submit(piece.made)))
        if len(waiting) > n_ahead:
            first, future = waiting.popleft()
            yield first, future.result()
    for first, future in waiting:
        yield first, future.result()


def _check_space(destination: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(destination.parent).free
    if free < needed_bytes:
        raise OSError(errno.ENOSPC, f"{free / 1e9:.1f} GB are free")


def _write_error(destination: Path, error: OSError, needed_bytes: int) -> QuantizeError:
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        return QuantizeError(
            f"{destination}: no space left for a model of {needed_bytes / 1e9:.1f} GB ({error.strerror})",
            hint="free some space, or quantize to a smaller type",
        )
    return QuantizeError(f"{destination}: cannot be written: {error.strerror or error}")

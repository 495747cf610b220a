"""Brings a file of this machine into the store, sharing its bytes where the file system can; it knows no source.

That is a clone of its blocks, else a hard link, else a copy. Through a hard link, a program that writes into the
original in place also changes the blob; programs that replace files do not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from registry.durable import require_space, writing
from registry.errors import SourceError
from registry.progress import Pace, Progress, check_canceled

_CHUNK_BYTES = 1 << 20
_FICLONE = 0x40049409


def take(path: Path, staged: Path, cancel: threading.Event) -> Generator[Progress, None, tuple[Path, str]]:
    """Bring one file into a staging folder, as `staged`; gives that and its digest. The events say how much is read.

    Raises:
        SourceError: it cannot be read, or changed meanwhile.
        PullCanceledError, NoSpaceError, StoreNotWritableError.
    """
    try:
        source = open(path, "rb")  # noqa: SIM115 (closed by the next statement)
    except OSError as error:
        raise SourceError(f'cannot read "{path}": {error.strerror}') from error
    with source:
        before = os.fstat(source.fileno())
        if _share(source, path, staged):
            digest = yield from _hash(source, path, None, cancel)
        else:
            require_space(staged.parent, before.st_size)
            with writing(staged), open(staged, "xb") as copy:
                digest = yield from _hash(source, path, copy, cancel)
        after = os.fstat(source.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SourceError(f'"{path}" changed while it was read')
    return staged, digest


def digest_of_file(path: Path, cancel: threading.Event) -> Generator[Progress, None, str]:
    """`sha256:<hex>` of a file's bytes; the events say how much is read. Raises: OSError, PullCanceledError."""
    with open(path, "rb") as source:
        return (yield from _hash(source, path, None, cancel))


def _hash(
    source: BinaryIO, path: Path, copy: BinaryIO | None, cancel: threading.Event
) -> Generator[Progress, None, str]:
    """Read to the end, writing to `copy` if given; gives the digest."""
    total = os.fstat(source.fileno()).st_size
    sha256 = hashlib.sha256()
    pace = Pace()
    completed = 0
    while chunk := source.read(_CHUNK_BYTES):
        check_canceled(cancel)
        sha256.update(chunk)
        if copy is not None:
            copy.write(chunk)
        completed += len(chunk)
        if pace.is_due():
            yield Progress(f"reading {path.name}", total=total, completed=completed)
    return f"sha256:{sha256.hexdigest()}"


def _share(source: BinaryIO, path: Path, staged: Path) -> bool:
    """Make `staged` the same bytes without copying them; False where the file system cannot."""
    if _clone(source, staged):
        return True
    try:
        os.link(path, staged)
    except OSError:
        return False
    if os.path.samestat(os.fstat(source.fileno()), os.stat(staged)):
        return True
    staged.unlink()
    return False


def _clone(source: BinaryIO, staged: Path) -> bool:
    """Share the blocks, each file then going its own way (Linux: btrfs, XFS, bcachefs)."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        with open(staged, "xb") as clone:
            fcntl.ioctl(clone.fileno(), _FICLONE, source.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            staged.unlink()
        return False
    return True

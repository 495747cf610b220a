"""Brings a file of this machine into the store, sharing its bytes where the file system can; it knows no source.

That is a clone of its blocks, else a hard link, else a copy. Through a hard link, a program that writes into the
original in place also changes the blob; programs that replace files do not. So files that other users may write, or
whose modes they may change, are never linked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
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
    with _opened(path) as source:
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


def _opened(path: Path) -> BinaryIO:
    """The file for reading; whatever is there in the end, opening it does not wait. Raises: SourceError."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise SourceError(f'cannot read "{path}": {error.strerror}') from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SourceError(f'"{path}" is not a file')
    return os.fdopen(handle, "rb")


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
    if not _is_own(os.fstat(source.fileno())):
        return False
    try:
        os.link(path, staged)
    except OSError:
        return False
    if os.path.samestat(os.fstat(source.fileno()), os.stat(staged)):
        return True
    staged.unlink()
    return False


def _is_own(found: os.stat_result) -> bool:
    """Whether no other user may write a file, now or after a chmod (Windows: whether it is ours is not known)."""
    return os.name == "nt" or (found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH)


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

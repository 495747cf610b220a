"""Writes that are there whole or not at all, whenever the power goes; it knows nothing of blobs or manifests."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from registry.errors import NoSpaceError, StoreNotWritableError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOLCK, errno.EOPNOTSUPP}
# Something else is where a folder or a file should be, or the device fails.
_REFUSED |= {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.EIO}


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable (a no-op where directories cannot be synced, as on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable; where the system allows it, without asking for the right to write them."""
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(temporary: Path, final: Path) -> None:
    """Rename a synced file over `final` (same file system) and make the new name durable."""
    os.replace(temporary, final)
    sync_directory(final.parent)


def write_whole(final: Path, content: bytes, temporary_directory: Path, prefix: str) -> None:
    """Write `final` through a temporary file `<prefix><random>` in a directory of the same file system."""
    temporary = temporary_directory / f"{prefix}{secrets.token_hex(8)}"
    try:
        with writing(final), open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def make_directories(directory: Path) -> None:
    """Make `directory` and its missing parents, each name durable."""
    missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusals while writing `path` into NoSpaceError and StoreNotWritableError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpaceError(str(path)) from error
        if error.errno in _REFUSED:
            raise StoreNotWritableError(str(path), os.strerror(error.errno)) from error
        raise


def require_space(directory: Path, n_bytes: int) -> None:
    """Raises NoSpaceError when the file system of `directory` has fewer than `n_bytes` free."""
    free = shutil.disk_usage(directory).free
    if free < n_bytes:
        raise NoSpaceError(str(directory), n_bytes, free)

"""Folders in which blobs are made before they have their name; it knows nothing of sources or manifests.

    blobs/.staging-<key>/lock          held as long as the work lasts; the system frees it when the process dies
    blobs/.staging-<key>/pin-<hex>     a blob that the work relies on and that no manifest names yet
    blobs/.staging-<key>/…             files on their way

They lie inside blobs/ to be on its file system whatever is mounted or linked there, and in
folders of their own because other programs that tidy the store remove unknown files but
not folders that hold something. Equal keys exclude each other, so that two processes that
want one download make it once. A folder whose lock is free belongs to a dead process.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from registry.digests import blob_file_name, parse_digest
from registry.durable import make_directories, writing
from registry.locks import FileLock
from registry.walking import files_below

_PREFIX = ".staging-"
_LOCK = "lock"
_PIN = "pin-"


class Staging:
    """An open staging folder; leaving the `with` block removes it with all it holds."""

    def __init__(self, directory: Path, lock: FileLock) -> None:
        self.path = directory
        self._lock = lock

    def pin(self, digest: str) -> None:
        """Keep a blob from being removed as unused while this folder is open (call it under the store's lock)."""
        (self.path / f"{_PIN}{blob_file_name(digest)}").touch()

    def unpin(self, digest: str) -> None:
        """The opposite."""
        (self.path / f"{_PIN}{blob_file_name(digest)}").unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder, then let the next one in."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def staging_path(blobs: Path, key: str) -> Path:
    """Where the staging folder of `key` (any text) lies."""
    return blobs / f"{_PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def try_staging(blobs: Path, key: str) -> Staging | None:
    """Open the folder of `key`, emptied of what a dead process left there; None while somebody else has it.

    Raises:
        NoSpaceError, StoreNotWritableError.
    """
    directory = staging_path(blobs, key)
    with writing(directory):
        make_directories(blobs)
        directory.mkdir(exist_ok=True)
        lock = FileLock(directory / _LOCK)
        if not lock.try_acquire():
            return None
        _empty(directory)
        return Staging(directory, lock)


def remove_abandoned(blobs: Path) -> None:
    """Remove the staging folders of dead processes."""
    for directory, lock in _folders(blobs):
        if lock.try_acquire():
            Staging(directory, lock).close()


def pinned_digests(blobs: Path) -> set[str]:
    """Blobs that living work relies on."""
    pinned: set[str] = set()
    for directory, lock in _folders(blobs):
        if lock.try_acquire():
            lock.release()
        else:
            pins = (path.name.removeprefix(_PIN) for path in directory.glob(f"{_PIN}*"))
            pinned.update(parse_digest(pin) for pin in pins)
    return pinned


def staged_bytes(directory: Path) -> int:
    """Bytes of all files below a staging folder; files may come and go meanwhile."""
    return sum(map(_size, files_below(directory)))


def _folders(blobs: Path) -> Iterator[tuple[Path, FileLock]]:
    for directory in sorted(blobs.glob(f"{_PREFIX}*")):
        yield directory, FileLock(directory / _LOCK)


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _LOCK:
            path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0

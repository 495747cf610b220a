"""Locks between processes (and threads) on a file, freed by the system when their holder dies.

It knows nothing of what is protected.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_POLL_S = 0.05


class FileLock:
    """An exclusive lock on a path. Not reentrant: two objects on one path exclude each other, also in one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it. False as well where the folder of the lock vanished.

        Raises:
            OSError: the file cannot be opened, or its file system has no locks.
        """
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except FileNotFoundError:
            return False
        try:
            if _lock(handle) and _is_still_at(self.path, handle):
                self._handle, handle = handle, -1
                return True
            return False
        finally:
            if handle >= 0:
                os.close(handle)

    def acquire(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait for the lock; `check` runs at every turn and may raise to give up."""
        while not self.try_acquire():
            check()
            time.sleep(_POLL_S)

    def release(self) -> None:
        """Free the lock; a no-op when it is not held."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _is_still_at(path: Path, handle: int) -> bool:
    """Whether the locked file is the one the path names: its last holder may have removed it meanwhile."""
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    held = os.fstat(handle)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

"""Upload sessions that may go on in a later push: small files, one a blob and repository; it knows no registry.

    <folder>/<key>.json    {"url": …}
    <folder>/<key>.lock    held by the push that uses it, so that two pushes send a blob once

The address of a session may be all that is needed to write to it: the folder is its owner's alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from registry.durable import make_directories, write_whole, writing
from registry.locks import FileLock

# Registries drop sessions after some days.
MAX_AGE_S = 7 * 86400.0


class KnownSession:
    """The address of one blob's session, None where nothing was begun; kept in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.url = _read(path) if path is not None else None

    def remember(self, url: str) -> None:
        """Raises NoSpaceError, StoreNotWritableError."""
        self.url = url
        if self._path is not None:
            write_whole(self._path, json.dumps({"url": url}).encode(), self._path.parent, ".new-")

    def forget(self) -> None:
        """There is nothing to go on with."""
        self.url = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class KnownSessions:
    """The folder; without one nothing is remembered, and nobody waits for another push."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def held(self, key: str, check: Callable[[], None]) -> Iterator[KnownSession]:
        """What is known of `key` (any text), once no other push has it; `check` may raise to give up waiting."""
        if self._folder is None:
            yield KnownSession(None)
            return
        stem = _stem(key)
        with writing(self._folder):
            make_directories(self._folder)
            self._folder.chmod(0o700)
            lock = FileLock(self._folder / f"{stem}.lock")
            lock.acquire(check)
        known = KnownSession(self._folder / f"{stem}.json")
        try:
            yield known
        finally:
            with contextlib.suppress(OSError):
                lock.path.unlink()
            lock.release()

    def forget(self, key: str) -> None:
        """There is nothing to go on with for `key`, whoever has it."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / f"{_stem(key)}.json").unlink(missing_ok=True)

    def remove_old(self) -> None:
        """Remove what no registry will go on with."""
        before_s = time.time() - MAX_AGE_S
        for path in self._folder.glob("*.json") if self._folder else ():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before_s:
                    path.unlink()


def _stem(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _read(path: Path) -> str | None:
    try:
        url = json.loads(path.read_bytes())["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if isinstance(url, str) else None

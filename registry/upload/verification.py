"""Whether a file holds what its digest says, found out by a thread of its own; it knows nothing of where it goes."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from types import TracebackType

from registry.errors import DigestMismatchError

_CHUNK_BYTES = 1 << 20


class Verification:
    """Hashes a file as long as the `with` block lasts."""

    def __init__(self, path: Path, digest: str) -> None:
        self._path = path
        self._digest = digest
        self._found: str | None = None
        self._error: OSError | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="verification", daemon=True)

    def check(self) -> None:
        """Raises DigestMismatchError, OSError: the file is known by now not to hold it, or cannot be read."""
        if self._error is not None:
            raise self._error
        if self._found is not None and self._found != self._digest:
            raise DigestMismatchError(self._digest, self._found)

    def finish(self) -> None:
        """The same, once all is known."""
        self._thread.join()
        self.check()

    def __enter__(self) -> Verification:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        sha256 = hashlib.sha256()
        try:
            with open(self._path, "rb") as file:
                while (chunk := file.read(_CHUNK_BYTES)) and not self._is_over.is_set():
                    sha256.update(chunk)
        except OSError as error:
            self._error = error
            return
        self._found = f"sha256:{sha256.hexdigest()}"

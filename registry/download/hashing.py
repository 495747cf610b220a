"""sha256 of a file that grows from many places, taken in order by a thread of its own; it knows nothing of networks."""

from __future__ import annotations

import hashlib
import threading
from io import FileIO

from registry.download.partial import Partial

_CHUNK_BYTES = 2 << 20
_POLL_S = 0.02


class PrefixHasher(threading.Thread):
    """Hashes what a partial file has from its start on, as that grows; what is there already is read from disk."""

    def __init__(self, partial: Partial) -> None:
        super().__init__(name="hash of a download", daemon=True)
        self._partial = partial
        self._sha256 = hashlib.sha256()
        self._position = 0
        self._stopped = threading.Event()
        self.error: OSError | None = None

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of what was hashed so far: of the whole file once the thread has ended by itself."""
        return f"sha256:{self._sha256.hexdigest()}"

    def stop(self) -> None:
        """End soon, whatever is missing."""
        self._stopped.set()

    def run(self) -> None:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        try:
            with open(self._partial.path, "rb", buffering=0) as file:
                self._follow(file, buffer)
        except OSError as error:
            self.error = error

    def _follow(self, file: FileIO, buffer: memoryview) -> None:
        while self._position < self._partial.size and not self._stopped.is_set():
            n_ready = min(self._partial.prefix - self._position, _CHUNK_BYTES)
            # Small steps while bytes trickle in would cost more than they gain.
            if n_ready < _CHUNK_BYTES and self._position + n_ready < self._partial.size:
                self._stopped.wait(_POLL_S)
                continue
            n_read = file.readinto(buffer[:n_ready]) or 0
            if not n_read and n_ready:
                raise OSError(f"{self._partial.path} was cut off at byte {self._position} by somebody else")
            self._sha256.update(buffer[:n_read])
            self._position += n_read

"""Which files were found to have the right bytes, as long as they are not touched; it knows nothing of how to tell."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

# Size in bytes, time of the last change of the bytes in ns, inode.
FileState = tuple[int, int, int]


def file_state(path: Path) -> FileState:
    """What changes when somebody writes into a file or puts another in its place. Raises OSError."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


class IntactBlobs:
    """A JSON file: name of a blob -> its state when it was right. Losing it costs a look at the blobs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, blob: Path) -> bool:
        """Whether the file is in the state in which it was right."""
        try:
            return self._read().get(blob.name) == list(file_state(blob))
        except OSError:
            return False

    def add(self, blob: Path, state: FileState) -> None:
        """Note a state, and forget blobs that are gone (under the store's lock)."""
        noted = {name: known for name, known in self._read().items() if blob.with_name(name).exists()}
        noted[blob.name] = list(state)
        temporary = self._path.with_name(f"{self._path.name}-{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(noted))
            os.replace(temporary, self._path)
        temporary.unlink(missing_ok=True)

    def _read(self) -> dict[str, list[int]]:
        try:
            document = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

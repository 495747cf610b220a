"""The file of lines typed in the REPL; it knows nothing of what they mean.

One entry a line, oldest first, at most 100, readable by its owner alone. A backslash is written as `\\\\`, a line
feed as `\\n`.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

MAX_ENTRIES = 100


class HistoryFile(History):
    """Prompt history that is written to `path` after every line while `enabled`; it is kept in memory in any case."""

    def __init__(self, path: Path, enabled: bool) -> None:
        super().__init__()
        self.enabled = enabled
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """The entries, newest first."""
        return reversed(self._read()) if self.enabled else []

    def store_string(self, string: str) -> None:
        """Adds an entry. The file is read again first, so that two sessions at a time keep each other's lines."""
        if self.enabled:
            self._write([*self._read(), string][-MAX_ENTRIES:])

    def _read(self) -> list[str]:
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return []
        return [_unescape(line) for line in lines if line]

    def _write(self, entries: list[str]) -> None:
        """Replaces the file in one step. A folder that cannot be written to must not end the chat."""
        content = "".join(_escape(entry) + "\n" for entry in entries)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix="history-")  # mode 0600
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(content)
            os.replace(temporary, self._path)
        except OSError:
            self.enabled = False


def _escape(entry: str) -> str:
    return entry.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")


def _unescape(line: str) -> str:
    parts = (part.replace("\\n", "\n").replace("\\r", "\r") for part in line.split("\\\\"))
    return "\\".join(parts)

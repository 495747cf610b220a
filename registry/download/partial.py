"""A download on its way to disk, in Ollama's files, so that either program goes on where the other stopped.

    sha256-<hex>-partial        the blob's full size, with holes where bytes are yet to come
    sha256-<hex>-partial-<N>    {"N":0,"Offset":0,"Size":100000000,"Completed":12345} of part N

Part sizes are a 16th of the blob, at least 100 MB and at most 1000 MB; those that are found on disk are kept to.
It knows nothing of where bytes come from, nor whether they are right.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from registry.durable import writing

MIN_PART_BYTES = 100_000_000
MAX_PART_BYTES = 1_000_000_000
N_PARTS = 16

_SAVE_EVERY_S = 0.2


@dataclass
class Part:
    """Bytes `offset` to `offset + size` of the blob, of which the first `completed` are on disk."""

    number: int
    offset: int
    size: int
    completed: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return self.completed >= self.size


class Partial:
    """The files of one blob at `final` of `size` bytes. Each part is written by one thread at a time."""

    def __init__(self, final: Path, size: int) -> None:
        """Raises NoSpaceError, StoreNotWritableError."""
        self.path = partial_path(final)
        self.size = size
        self._files: dict[int, tuple[FileIO, FileIO]] = {}
        self._saved_s: dict[int, float] = {}
        with writing(self.path):
            self.parts = _read_parts(self.path, size) or self._anew(_layout(size))
            with open(self.path, "ab") as file:
                file.truncate(size)

    @property
    def completed(self) -> int:
        """Bytes on disk."""
        return sum(part.completed for part in self.parts)

    @property
    def prefix(self) -> int:
        """Bytes on disk without a gap from the start."""
        end = 0
        for part in self.parts:
            end = part.offset + part.completed
            if not part.is_complete:
                break
        return end

    def write(self, part: Part, pieces: Sequence[bytes]) -> None:
        """Append to a part what it lacks. Raises NoSpaceError."""
        with writing(self.path):
            file = self._file_of(part)[0]
            file.seek(part.offset + part.completed)
            for piece in pieces:
                view = memoryview(piece)[: part.size - part.completed]
                while view:
                    n_written = file.write(view) or 0
                    part.completed += n_written
                    view = view[n_written:]
        now = time.monotonic()
        if part.is_complete or now >= self._saved_s.get(part.number, 0.0):
            self._saved_s[part.number] = now + _SAVE_EVERY_S
            self.save(part)

    def save(self, part: Part) -> None:
        """Bring a part's own file up to date: in place, since its text never gets shorter. Raises NoSpaceError."""
        with writing(self.path):
            file = self._file_of(part)[1]
            file.seek(0)
            file.write(_text_of(part).encode())

    def join(self) -> None:
        """Make one part of all, with what is there from the start: for a server that knows no ranges."""
        prefix = self.prefix
        self.close()
        for path in _part_paths(self.path):
            path.unlink(missing_ok=True)
        self.parts = [Part(0, 0, self.size, prefix)]
        self.save(self.parts[0])

    def close(self) -> None:
        """Leave the files so that the download can go on later."""
        for files in self._files.values():
            for file in files:
                file.close()
        self._files.clear()

    def abandon(self) -> None:
        """Say by its date that nobody waits for the rest: the next tidying may remove it, however new it is."""
        os.utime(self.path, (0, 0))

    def discard(self) -> None:
        """Remove all files."""
        self.close()
        remove_partial(self.path)

    def remove_parts(self) -> None:
        """Remove the parts' files, once the whole has its final name."""
        self.close()
        for path in _part_paths(self.path):
            path.unlink(missing_ok=True)

    def _file_of(self, part: Part) -> tuple[FileIO, FileIO]:
        """What a part writes to: the whole, and its own file."""
        if part.number not in self._files:
            paths = (self.path, _part_path(self.path, part.number))
            paths[1].touch()
            self._files[part.number] = (FileIO(paths[0], "r+"), FileIO(paths[1], "r+"))
        return self._files[part.number]

    def _anew(self, parts: list[Part]) -> list[Part]:
        remove_partial(self.path)
        for part in parts:
            _part_path(self.path, part.number).write_text(_text_of(part))
        return parts


def partial_path(final: Path) -> Path:
    """Where the bytes of the blob at `final` are gathered."""
    return final.with_name(f"{final.name}-partial")


def completed_on_disk(final: Path, size: int) -> int:
    """How many bytes of the blob at `final` an interrupted download, or another process, has gathered."""
    return sum(part.completed for part in _read_parts(partial_path(final), size) or ())


def remove_partial(path: Path) -> None:
    """Remove the files of a partial download; those of its parts last, so that no bytes stay unaccounted."""
    for file in (path, *_part_paths(path)):
        file.unlink(missing_ok=True)


def _layout(size: int) -> list[Part]:
    part_size = min(max(size // N_PARTS, MIN_PART_BYTES), MAX_PART_BYTES)
    offsets = range(0, size, part_size)
    return [Part(number, offset, min(part_size, size - offset)) for number, offset in enumerate(offsets)]


def _text_of(part: Part) -> str:
    document = {"N": part.number, "Offset": part.offset, "Size": part.size, "Completed": part.completed}
    return json.dumps(document, separators=(",", ":"))


def _part_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}-{number}")


def _part_paths(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{path.name}-*"))


def _read_parts(path: Path, size: int) -> list[Part] | None:
    """The parts on disk in order; None unless they are the whole blob's and the file holds what they say."""
    try:
        parts = sorted((_read_part(file) for file in _part_paths(path)), key=lambda part: part.offset)
        held = path.stat().st_size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    end = 0
    for part in parts:
        reaches = part.offset + part.completed
        if part.offset != end or part.size <= 0 or not 0 <= part.completed <= part.size or reaches > held:
            return None
        end += part.size
    return parts if parts and end == size else None


def _read_part(path: Path) -> Part:
    document = json.loads(path.read_bytes())
    values = [document[key] for key in ("N", "Offset", "Size", "Completed")]
    if not all(type(value) is int for value in values) or path.name.rpartition("-")[2] != str(values[0]):
        raise ValueError(f"{path} does not describe a part")
    return Part(*values)

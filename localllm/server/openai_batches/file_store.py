"""Uploaded files and those that batches write: a record and the bytes each; it knows nothing of HTTP or of batches."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from localllm.server.openai_batches.folder import (
    is_id,
    new_id,
    read_record,
    remove_parts,
    write_record,
    written_whole,
)

COPY_BYTES = 1 << 20
PREFIX = "file-"


class NoRoomError(ValueError):
    """The files together would take more than they may."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"no room for the file: uploaded files and results may take {limit} bytes together")


@dataclass(frozen=True)
class StoredFile:
    """What is known of a file. `created_at` is in Unix seconds."""

    id: str
    n_bytes: int
    created_at: int
    filename: str
    purpose: str

    def as_json(self) -> dict[str, Any]:
        """OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.n_bytes,
            "created_at": self.created_at,
            "expires_at": None,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class FileStore:
    """The files in a folder. The bytes come first and go last, so that what has a record is whole.

    `max_bytes` is what they and the files `beside` may take together; two names of the same bytes count once.
    """

    def __init__(self, folder: Path, max_bytes: int, beside: Callable[[], Iterable[Path]] = tuple) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._beside = beside

    def add(self, source: BinaryIO, filename: str, purpose: str) -> StoredFile:
        """Take a file in, from its present position. Raises: NoRoomError, OSError."""
        file_id = new_id(PREFIX)
        room = self._max_bytes - self._n_taken()
        with written_whole(self.path(file_id)) as target:
            while part := source.read(COPY_BYTES):
                room -= len(part)
                if room < 0:
                    raise NoRoomError(self._max_bytes)
                target.write(part)
            n_bytes = target.tell()
        return self._record(file_id, n_bytes, filename, purpose)

    def _n_taken(self) -> int:
        sizes: dict[tuple[int, int], int] = {}
        for path in (*self._folder.glob(f"{PREFIX}*.bin"), *self._beside()):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                sizes[found.st_dev, found.st_ino] = found.st_size
        return sum(sizes.values())

    def adopt(self, path: Path, file_id: str, filename: str, purpose: str) -> StoredFile:
        """Move a file of this file system in, under an id chosen before; done twice it is the same. Raises: OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, self._made(file_id))
        return self._record(file_id, self.path(file_id).stat().st_size, filename, purpose)

    def _made(self, file_id: str) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.path(file_id)

    def _record(self, file_id: str, n_bytes: int, filename: str, purpose: str) -> StoredFile:
        file = StoredFile(file_id, n_bytes, int(time.time()), filename, purpose)
        write_record(self._record_path(file_id), asdict(file))
        return file

    def get(self, file_id: str) -> StoredFile | None:
        """What is known of a file, None where there is none of that id."""
        return read_record(self._record_path(file_id), StoredFile) if is_id(file_id) else None

    def path(self, file_id: str) -> Path:
        """Where the bytes of a file are."""
        return self._folder / f"{file_id}.bin"

    def all(self) -> list[StoredFile]:
        """All files, newest first."""
        found = [self.get(path.stem) for path in self._folder.glob(f"{PREFIX}*.json")]
        return sorted((file for file in found if file), key=lambda file: (file.created_at, file.id), reverse=True)

    def remove(self, file_id: str) -> bool:
        """Remove a file; False where there is none of that id. Raises: OSError."""
        if self.get(file_id) is None:
            return False
        self._record_path(file_id).unlink(missing_ok=True)
        self.path(file_id).unlink(missing_ok=True)
        return True

    def remove_parts(self, before_s: float) -> None:
        """Remove what a crash before `before_s`, in Unix seconds, left half written. Raises: OSError."""
        remove_parts(self._folder, "*", before_s)

    def link(self, file_id: str, target: Path) -> None:
        """Keep a file's bytes at `target` too, whatever becomes of the file. Raises: OSError."""
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.link(self.path(file_id), target)
        except OSError:
            shutil.copyfile(self.path(file_id), target)

    def _record_path(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.json"

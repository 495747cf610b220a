"""Records and contents in a folder, each written at once or not at all; it knows nothing of what they say."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")

ID_BYTES = 12
_ID = re.compile(r"(?:file-|batch_)[0-9a-f]{24}")


def new_id(prefix: str) -> str:
    """An id that nobody has."""
    return prefix + secrets.token_hex(ID_BYTES)


def is_id(text: str) -> bool:
    """Whether a text is an id, and so may be part of a path."""
    return _ID.fullmatch(text) is not None


def read_record(path: Path, kind: Callable[..., T]) -> T | None:
    """The record of a kind that is in a file, None where there is none, or it cannot be read or is of another kind."""
    try:
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def write_record(path: Path, record: dict[str, Any], *, syncs: bool = True) -> None:
    """Put a record in place of the one that is there. Without `syncs` nothing waits for the disk. Raises: OSError."""
    with written_whole(path, syncs=syncs) as file:
        file.write(json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode())


@contextlib.contextmanager
def written_whole(path: Path, *, syncs: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which takes the path's name when it is complete. Raises: OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb", opener=_private) as file:
            yield file
            file.flush()
            if syncs:
                os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(folder: Path, pattern: str, before_s: float) -> None:
    """Remove what was being written at a crash: last touched before `before_s`, in Unix seconds. Raises: OSError."""
    for part in folder.glob(f"{pattern}.part"):
        if part.stat().st_mtime < before_s:
            part.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

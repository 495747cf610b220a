"""Keeps arrays that are slow to compute in one file per vocabulary; it does not know what is in them.

    magic 8 bytes | key 32 | SHA-256 of the rest 32 | n_sections u32, name and extent of each | the arrays

A file that does not match its key or checksum counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import struct
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

MAGIC = b"LLTOK\x001\n"
DIGEST_BYTES = 32
HEADER_BYTES = len(MAGIC) + 2 * DIGEST_BYTES
FOLDER = "tokenizers"
ALIGNMENT = 16

Sections = Mapping[str, npt.NDArray[Any]]


def digest(parts: Iterable[bytes | memoryview]) -> bytes:
    """A key for the given bytes; the division into parts counts."""
    key = hashlib.sha256()
    for part in parts:
        key.update(struct.pack("<Q", memoryview(part).nbytes))
        key.update(part)
    return key.digest()


def load(folder: Path, key: bytes) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays stored under `key`, read-only, or None if there are none that can be trusted.

    They are views of the file, mapped, whose pages count once they are read.
    """
    path = _path(folder, key)
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        logger.warning("tokenizer cache %s cannot be read: %s", path, error)
        return None
    body = memoryview(content)[HEADER_BYTES:]
    if content[:HEADER_BYTES] != _header(key, body):
        logger.warning("tokenizer cache %s is damaged; building it anew", path)
        return None
    arrays = _unpack(body)
    if hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)  # the check read all of it
    return arrays


def store(folder: Path, key: bytes, sections: Sections) -> None:
    """Store arrays under `key`. Failure is logged only: the cache is a convenience."""
    body = _pack(sections)
    path = _path(folder, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_header(key, body))
                file.write(body)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        logger.warning("tokenizer cache %s cannot be written: %s", path, error)


def _path(folder: Path, key: bytes) -> Path:
    return folder / FOLDER / f"{key.hex()[:40]}.bin"


def _header(key: bytes, body: bytes | memoryview) -> bytes:
    return MAGIC + key + hashlib.sha256(body).digest()


def _pack(sections: Sections) -> bytes:
    table, blobs, at = [], [], 0
    for name, array in sections.items():
        blob = np.ascontiguousarray(array).tobytes()
        table.append([name, array.dtype.str, at, len(blob)])
        blob += bytes(-len(blob) % ALIGNMENT)
        blobs.append(blob)
        at += len(blob)
    head = json.dumps(table).encode()
    head += b" " * (-(4 + len(head) + HEADER_BYTES) % ALIGNMENT)
    return b"".join([struct.pack("<I", len(head)), head, *blobs])


def _unpack(body: memoryview) -> dict[str, npt.NDArray[Any]]:
    (n_head,) = struct.unpack_from("<I", body)
    data = body[4 + n_head :]
    table = json.loads(bytes(body[4 : 4 + n_head]))
    return {name: np.frombuffer(data[at : at + size], dtype) for name, dtype, at, size in table}

"""The file of one page: written whole or not at all, and read only if every byte is what it was.

    magic 8 bytes | chain 32 | content bytes u64 | sum of the content u32 | tokens 32 x i32 | CRC of these 180 bytes u32
    zeros up to byte 256
    content

Integers are little-endian. The sum is a CRC of sums of 64-bit words: it costs a twentieth of what a CRC of the bytes
does, and tells any flipped bit and any part that is lost. It does not know where files lie, nor which there should be.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernels_cpu.prefix_files import PARTIAL_SUFFIX
from localllm.engine.backend import Bytes

MAGIC = b"LLMKVPG\1"
HEAD = struct.Struct("<8s32sQI128s")
HEAD_BYTES = 256
# Words that are summed before their sum goes into the CRC.
RUN_WORDS = 512


@dataclass(frozen=True)
class PageId:
    """A page: the chain that names it, that of the page before it, and its own tokens, 32 x int32."""

    chain: bytes
    before: bytes
    tokens: bytes


class DamagedError(Exception):
    """A file that does not hold what its name says."""


def checksum(content: Bytes) -> int:
    """The CRC of the sums of the 64-bit words of each run of 4096 bytes."""
    padded = content if content.nbytes % 8 == 0 else np.append(content, np.zeros(-content.nbytes % 8, np.uint8))
    words = padded.view(np.uint64)
    n_whole = len(words) // RUN_WORDS * RUN_WORDS
    sums = words[:n_whole].reshape(-1, RUN_WORDS).sum(axis=1)
    return zlib.crc32(words[n_whole:].data, zlib.crc32(sums.data))


def _head(page: PageId, content: Bytes) -> bytes:
    fields = HEAD.pack(MAGIC, page.chain, content.nbytes, checksum(content), page.tokens)
    return (fields + zlib.crc32(fields).to_bytes(4, "little")).ljust(HEAD_BYTES, b"\0")


def write_page(path: Path, page: PageId, content: Bytes) -> None:
    """Make the file of a page, for this user alone. Raises: OSError, and then there is none."""
    handle, partial = tempfile.mkstemp(PARTIAL_SUFFIX, "", path.parent)  # of 0600, less what the umask takes
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            os.chmod(partial, 0o600)
            for part in (_head(page, content), content.data):
                view = memoryview(part)
                while view:
                    view = view[file.write(view) :]
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def read_page(path: Path, page: PageId, n_bytes: int) -> Bytes:
    """The content of a page, uint8 [n_bytes].

    Raises:
        OSError: it cannot be read.
        DamagedError: the file is not that of this page, or not as it was written.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():
        raise DamagedError
    with open(os.open(path, flags), "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != HEAD_BYTES + n_bytes:
            raise DamagedError
        whole = np.empty(HEAD_BYTES + n_bytes, np.uint8)
        view = whole.data
        while view and (n := file.readinto(view)):
            view = view[n:]
    content = whole[HEAD_BYTES:]
    if view or whole[:HEAD_BYTES].tobytes() != _head(page, content):
        raise DamagedError
    return content

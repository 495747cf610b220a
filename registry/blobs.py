"""The blobs of a store: files named after the sha256 of their bytes; it knows nothing of what is in them.

A file `sha256-<hex>` is whole and verified from the instant it has that name: bytes are
written and hashed in a staging folder, synced, and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from pathlib import Path
from types import TracebackType

from registry.digests import blob_file_name, digest_of, parse_digest
from registry.durable import make_directories, publish, require_space, sync_file, writing
from registry.errors import BrokenModelError, DigestMismatchError
from registry.staging import Staging, try_staging


class Blobs:
    """The folder `blobs/` of a store; it need not exist before the first write."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, digest: str) -> Path:
        """Where a blob lies or would lie. Raises InvalidDigestError."""
        return self.directory / blob_file_name(digest)

    def size(self, digest: str) -> int | None:
        """Bytes of a blob, None when it is not there."""
        try:
            return self.path(digest).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether a blob is there (and has `size` bytes, when given)."""
        found = self.size(digest)
        return found is not None and size in (None, found)

    def read(self, digest: str, max_bytes: int) -> bytes:
        """The content of a small blob.

        Raises:
            BrokenModelError: it is missing, unreadable, or longer than `max_bytes`.
        """
        try:
            with open(self.path(digest), "rb") as file:
                content = file.read(max_bytes + 1)
        except OSError as error:
            raise BrokenModelError(f"blob {digest}", error.strerror or str(error)) from error
        if len(content) > max_bytes:
            raise BrokenModelError(f"blob {digest}", f"longer than {max_bytes} bytes")
        return content

    def writer(self, staging: Staging | None = None, expected_bytes: int = 0) -> BlobWriter:
        """A writer for one new blob, in a staging folder of its own unless one is given.

        Raises:
            NoSpaceError: the disk has fewer than `expected_bytes` free.
        """
        with writing(self.directory):
            make_directories(self.directory)
        require_space(self.directory, expected_bytes)
        return BlobWriter(self, staging)

    def put(self, content: bytes) -> tuple[str, bool]:
        """Store some bytes; gives their digest and whether the blob is new."""
        digest = digest_of(content)
        if self.has(digest, len(content)):
            return digest, False
        with self.writer(expected_bytes=len(content)) as writer:
            writer.write(content)
            writer.commit(digest)
        return digest, True

    def adopt(self, path: Path, digest: str) -> None:
        """Rename a file, on the file system of the store and already verified, to its blob name."""
        with writing(self.directory):
            sync_file(path)
            publish(path, self.path(digest))

    def remove(self, digest: str) -> int:
        """Delete a blob; gives the bytes freed, 0 when it was not there."""
        size = self.size(digest) or 0
        self.path(digest).unlink(missing_ok=True)
        return size


class BlobWriter:
    """Takes the bytes of one blob. Leaving the `with` block without `commit` leaves nothing behind."""

    def __init__(self, blobs: Blobs, staging: Staging | None) -> None:
        self._blobs = blobs
        self._cleanup = contextlib.ExitStack()
        if staging is None:
            staging = self._cleanup.enter_context(_private_staging(blobs.directory))
        self.path = staging.path / f"blob-{secrets.token_hex(8)}"
        self._hash = hashlib.sha256()
        self.size = 0
        with self._cleanup, writing(self.path):
            self._file = open(self.path, "xb")  # noqa: SIM115 (closed by finish and by __exit__)
            self._cleanup = self._cleanup.pop_all()

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of what was written so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def write(self, chunk: bytes) -> None:
        """Append some bytes. Raises NoSpaceError."""
        with writing(self.path):
            self._file.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def finish(self, expected_digest: str | None = None) -> str:
        """Flush and verify, so that `path` can be looked into before `commit`.

        Raises:
            DigestMismatchError: the bytes are not those of `expected_digest`.
        """
        with writing(self.path):
            self._file.close()
        if expected_digest is not None and parse_digest(expected_digest) != self.digest:
            raise DigestMismatchError(parse_digest(expected_digest), self.digest)
        return self.digest

    def commit(self, expected_digest: str | None = None) -> str:
        """Verify, sync, and give the bytes their blob name; gives their digest.

        Raises:
            DigestMismatchError, NoSpaceError.
        """
        digest = self.finish(expected_digest)
        # Over what may be there: these bytes are known to be right.
        self._blobs.adopt(self.path, digest)
        return digest

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A full disk refuses the buffered rest once more on closing; the file goes away in any case.
        with self._cleanup, contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


def _private_staging(directory: Path) -> Staging:
    while True:
        staging = try_staging(directory, secrets.token_hex(16))
        if staging is not None:
            return staging

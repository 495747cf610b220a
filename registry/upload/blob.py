"""Brings one blob into a repository: found there, mounted, or sent in parts and after breaks; it shows nothing.

A registry may want the parts elsewhere, each at an address of its own; these go side by side. A blob that is not what
its digest says is never made one in the registry, and as soon as that is known no more of it is sent.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from registry.errors import BrokenModelError, DigestMismatchError, RemoteError, UnreachableError
from registry.progress import check_canceled
from registry.remote import Patience
from registry.upload.known import KnownSession, KnownSessions
from registry.upload.sessions import Redirect, Session, SessionLostError, Sessions
from registry.upload.verification import Verification

MIN_PART_BYTES = 100_000_000
MAX_PART_BYTES = 1_000_000_000

_N_PARTS = 16
_N_PARTS_AT_ONCE = 4
_CHUNK_BYTES = 1 << 20
_MAX_LOST = 3
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Blob:
    """What is to be sent: `digest`, and the file of `size` bytes that should hold it."""

    digest: str
    size: int
    path: Path


@dataclass
class BlobUpload:
    """One blob's way into `repository` (host and name); `mount_from` is a repository there that may have it.

    `completed` may be read by other threads while `run` runs; it never falls.
    """

    blob: Blob
    repository: str
    sessions: Sessions
    known: KnownSessions
    patience: Patience
    stop: threading.Event
    mount_from: str | None = None
    completed: int = 0
    _acknowledged: int = 0

    def run(self) -> None:
        """Until the blob is there.

        Raises:
            DigestMismatchError: the file does not hold the blob.
            RemoteError, UnreachableError: once patience has ended.
            PullCanceledError: `stop` was set.
        """
        key = f"{self.repository} {self.blob.digest}"
        if self.sessions.has(self.blob.digest):
            # A push that was killed right after its commit left the session behind.
            self.known.forget(key)
        else:
            with self.known.held(key, self._check) as known:
                self._bring(known)
        self.completed = self.blob.size

    def _bring(self, known: KnownSession) -> None:
        """Send and commit; after a failure go on where the registry is, or begin anew."""
        n_lost = n_failed = best = 0
        with Verification(self.blob.path, self.blob.digest) as verification:
            while True:
                try:
                    self._try(known, verification)
                    known.forget()
                    return
                except SessionLostError as lost:
                    known.forget()
                    n_lost += 1
                    if n_lost > _MAX_LOST:
                        raise lost.error from lost
                except (RemoteError, UnreachableError) as error:
                    if isinstance(error, RemoteError) and error.status not in _PASSING:
                        raise
                    n_failed = 1 if self._acknowledged > best else n_failed + 1
                    best = max(best, self._acknowledged)
                    if n_failed >= self.patience.n_tries:
                        raise
                    self.patience.wait(n_failed - 1, self.stop)

    def _try(self, known: KnownSession, verification: Verification) -> None:
        # Another push may have brought it, or the answer to a commit been lost.
        if self.sessions.has(self.blob.digest):
            return
        session = self._session(known)
        if session is None:
            return
        try:
            session, etag = self._send_rest(session, known, verification)
            verification.finish()
        except DigestMismatchError:
            self.sessions.abandon(session)
            known.forget()
            raise
        self.sessions.commit(session, self.blob.digest, etag)

    def _session(self, known: KnownSession) -> Session | None:
        """The known session as the registry has it, else a new one; None: the blob has been mounted."""
        if known.url is not None:
            return self.sessions.status(Session(known.url))
        session = self.sessions.start(self.blob.digest, self.mount_from)
        if session is not None:
            known.remember(session.url)
        return session

    def _send_rest(
        self, session: Session, known: KnownSession, verification: Verification
    ) -> tuple[Session, str | None]:
        """All that the registry lacks; gives the session to commit, and the tag of what was made of parts elsewhere."""
        part_bytes = min(max(self.blob.size // _N_PARTS, MIN_PART_BYTES), MAX_PART_BYTES)
        elsewhere: list[Future[bytes]] = []
        with ThreadPoolExecutor(_N_PARTS_AT_ONCE, thread_name_prefix="part") as pool:
            while session.offset < self.blob.size:
                part = _Part(self, session.offset, min(session.offset + part_bytes, self.blob.size), verification)
                answer = self.sessions.send(session, part.end, part.content)
                if isinstance(answer, Redirect):
                    known.forget()  # what is elsewhere cannot be asked for
                    elsewhere.append(pool.submit(part.put, answer.url))
                    session = answer.session
                else:
                    session = answer
                    self._acknowledged = max(self._acknowledged, session.offset)
                    known.remember(session.url)
            digests = [part_digest.result() for part_digest in elsewhere]
        return session, _etag(digests) if digests else None

    def _check(self) -> None:
        check_canceled(self.stop)


@dataclass
class _Part:
    """The bytes of a blob from `start` to `end`."""

    upload: BlobUpload
    start: int
    end: int
    verification: Verification

    def content(self) -> Iterator[bytes]:
        """Its bytes, from the beginning at each call. Raises PullCanceledError, DigestMismatchError."""
        with open(self.upload.blob.path, "rb") as file:
            file.seek(self.start)
            position = self.start
            while position < self.end:
                check_canceled(self.upload.stop)
                self.verification.check()
                chunk = file.read(min(_CHUNK_BYTES, self.end - position))
                if not chunk:
                    raise BrokenModelError(f"blob {self.upload.blob.digest}", "became shorter while it was read")
                yield chunk
                position += len(chunk)
                self.upload.completed = max(self.upload.completed, position)

    def put(self, url: str) -> bytes:
        """Send it to an address of its own, with patience; gives its MD5, by which such stores name parts."""
        n_failed = 0
        while True:
            try:
                self.upload.sessions.put(url, self.end - self.start, self._hashed)
                return self._md5.digest()
            except UnreachableError:
                n_failed += 1
                if n_failed >= self.upload.patience.n_tries:
                    raise
                self.upload.patience.wait(n_failed - 1, self.upload.stop)

    def _hashed(self) -> Iterator[bytes]:
        self._md5 = hashlib.md5(usedforsecurity=False)
        for chunk in self.content():
            self._md5.update(chunk)
            yield chunk


def _etag(digests: Sequence[bytes]) -> str:
    """How such stores name what was made of parts: by the MD5 of their MD5s, and how many they are."""
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"

"""Blobs that are wanted, made blobs of the store; it knows nothing of which server has them.

A blob that is there is looked at again, unless the store remembers that it was right and it has not changed since.
Of two pulls that want one blob, in one process or two, the first downloads and the second watches.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from registry.digests import parse_digest
from registry.download.download import Download, Open
from registry.download.partial import Partial, completed_on_disk
from registry.durable import make_directories, writing
from registry.errors import DigestMismatchError
from registry.progress import Cancellation, Pace, Progress, check_canceled, pulling
from registry.remote import Patience
from registry.staging import Staging, try_staging
from registry.store import Store

_CHUNK_BYTES = 4 << 20
_POLL_S = 0.06


@dataclass(frozen=True)
class Wants:
    """A blob by its digest (`sha256:<hex>`) and size in bytes, and how to open it at the server."""

    digest: str
    size: int
    open_blob: Open


def missing_bytes(store: Store, wants: Iterable[Wants]) -> int:
    """How much room the blobs that are not there need, beside what interrupted downloads already hold."""
    blobs = {want.digest: want.size for want in wants}
    return sum(
        size - completed_on_disk(store.blobs.path(digest), size)
        for digest, size in blobs.items()
        if not store.blobs.has(digest, size)
    )


def bring_blob(store: Store, want: Wants, patience: Patience, cancel: threading.Event) -> Iterator[Progress]:
    """Have the blob in the store, whole and right; the last event says that all of it is there.

    Raises:
        DigestMismatchError: the server's bytes are not those of the digest; none of them are kept.
        SourceError, NoSpaceError, StoreNotWritableError, PullCanceledError.
    """
    shown = 0
    with contextlib.closing(_brought(store, want, patience, cancel)) as events:
        for event in events:
            # A download that proved wrong, ours or another's, does not take back what was shown.
            shown = max(shown, event.completed)
            yield pulling(want.digest, want.size, shown)


def _brought(store: Store, want: Wants, patience: Patience, cancel: threading.Event) -> Generator[Progress, None, None]:
    yield pulling(want.digest, want.size, 0)
    with writing(store.blobs.directory):
        make_directories(store.blobs.directory)
    if not (yield from is_intact(store, want.digest, want.size, cancel)):
        with (yield from _turn(store, want, cancel)):
            # Another pull may have brought it meanwhile.
            if not (yield from is_intact(store, want.digest, want.size, cancel)):
                yield from _download(store, want, patience, cancel)
    yield pulling(want.digest, want.size, want.size)


def _turn(store: Store, want: Wants, cancel: threading.Event) -> Generator[Progress, None, Staging]:
    """Wait for the right to download the blob, showing how far the one is who has it."""
    shown = 0
    while (staging := try_staging(store.blobs.directory, want.digest)) is None:
        check_canceled(cancel)
        shown = max(shown, completed_on_disk(store.blobs.path(want.digest), want.size))
        yield pulling(want.digest, want.size, shown)
        cancel.wait(_POLL_S)
    return staging


def is_intact(store: Store, digest: str, size: int, cancel: threading.Event) -> Generator[Progress, None, bool]:
    """Whether a blob is there with the right bytes, which may mean to read it; the events then say nothing is done."""
    if not store.blobs.has(digest, size):
        return False
    if store.is_known_intact(digest):
        return True
    sha256, pace = hashlib.sha256(), Pace()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open(store.blobs.path(digest), "rb", buffering=0) as file:
        state = store.state_of(digest)
        while n_read := file.readinto(buffer):
            check_canceled(cancel)
            sha256.update(buffer[:n_read])
            if pace.is_due():
                yield pulling(digest, size, 0)
    if f"sha256:{sha256.hexdigest()}" != parse_digest(digest):
        return False
    store.remember_intact(digest, state)
    return True


def _download(store: Store, want: Wants, patience: Patience, cancel: threading.Event) -> Iterator[Progress]:
    final = store.blobs.path(want.digest)
    partial = Partial(final, want.size)
    try:
        download = Download(partial, want.digest, want.open_blob, patience, cancel)
        yield from download.run()
        if download.digest != parse_digest(want.digest):
            partial.discard()
            raise DigestMismatchError(want.digest, download.digest)
        partial.close()
        store.blobs.adopt(partial.path, want.digest)
        partial.remove_parts()
        store.remember_intact(want.digest, store.state_of(want.digest))
    finally:
        partial.close()
        if isinstance(cancel, Cancellation) and cancel.is_abandoned and partial.path.exists():
            partial.abandon()

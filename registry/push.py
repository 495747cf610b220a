"""A model in the store goes to the registry that its name says; it knows nothing of requests.

Blobs that the registry lacks go side by side; their events come one blob after the other, in the manifest's order.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from registry.errors import (
    BrokenModelError,
    DigestMismatchError,
    InvalidNameError,
    ModelNotFoundError,
    PushDeniedError,
    RemoteError,
    UnreachableError,
)
from registry.manifest import Layer, Manifest
from registry.names import DEFAULT_HOST, DEFAULT_NAMESPACE, Name, parse_name
from registry.progress import (
    NO_MANIFEST,
    PUSHING_MANIFEST,
    RETRIEVING_MANIFEST,
    SUCCESS,
    Progress,
    check_canceled,
    pushing,
)
from registry.remote import Access, Remote
from registry.store import Store
from registry.upload import ACTIONS, Blob, BlobUpload, KnownSessions, Sessions

_INTERVAL_S = 0.06
_N_BLOBS_AT_ONCE = 4
# A registry may read a whole blob from its disk before it says that it has it.
_COMMIT_STALL_S = 1800.0


def push(
    name: Name, store: Store, *, access: Access, sessions: Path | None = None, cancel: threading.Event | None = None
) -> Iterator[Progress]:
    """Send a model to the host of its name; yields events, the last is `success`.

    Uploads that are broken off leave their addresses in the folder `sessions`, and the next push goes on with them
    where the registry still knows them. Closing the iterator or setting `cancel` ends the push.

    Raises (while iterating):
        ModelNotFoundError, BrokenModelError: nothing, or nothing whole, to push.
        PushDeniedError: the name, or the user, may not be written to.
        InsecureProtocolError, RemoteError, UnreachableError, PullCanceledError.
    """
    cancel = cancel or threading.Event()
    yield RETRIEVING_MANIFEST
    try:
        manifest = store.manifest(name)
    except (ModelNotFoundError, BrokenModelError):
        yield NO_MANIFEST
        raise
    if name.key[:2] == (DEFAULT_HOST, DEFAULT_NAMESPACE):
        raise PushDeniedError(name.short, hint=f"localllm cp {name.short} YOU/{name.model}, then push that name")
    blobs = _blobs(store, name, manifest)
    stop = threading.Event()
    with access.remote(name, stop) as remote, _patient(access).remote(name, stop) as patient:
        known = KnownSessions(sessions)
        known.remove_old()
        repository = f"{name.host}/{name.namespace}/{name.model}".lower()
        uploads = [
            BlobUpload(
                blob, repository, Sessions(remote, patient), known, access.patience, stop, _mount(store, name, layer)
            )
            for layer, blob in blobs
        ]
        with _explaining(name):
            yield from _together(uploads, stop, cancel, (remote, patient))
            yield PUSHING_MANIFEST
            _push_manifest(remote, access, name, manifest, cancel)
    yield SUCCESS


def _patient(access: Access) -> Access:
    return replace(access, patience=replace(access.patience, stall_s=max(_COMMIT_STALL_S, access.patience.stall_s)))


def _blobs(store: Store, name: Name, manifest: Manifest) -> list[tuple[Layer, Blob]]:
    """Each blob once, the config last. Raises BrokenModelError."""
    found: dict[str, tuple[Layer, Blob]] = {}
    for layer in (*manifest.layers, *([manifest.config] if manifest.config.digest else [])):
        if not store.blobs.has(layer.digest, layer.size):
            raise BrokenModelError(
                name.short,
                f"blob {layer.digest} is missing or has another size",
                hint=f"localllm pull {name.short}",
            )
        found.setdefault(layer.digest, (layer, Blob(layer.digest, layer.size, store.blobs.path(layer.digest))))
    return list(found.values())


def _mount(store: Store, name: Name, layer: Layer) -> str | None:
    """Another repository of the same host that may have a blob: one that is here under its name too, or its origin."""
    own = name.key[1:3]
    for other in store.names():
        if other.key[0] == name.key[0] and other.key[1:3] != own:
            with contextlib.suppress(BrokenModelError, ModelNotFoundError):
                if layer.digest in store.manifest(other).digests:
                    return f"{other.namespace}/{other.model}"
    if not layer.from_model:
        return None
    try:
        origin = parse_name(layer.from_model)
    except InvalidNameError:
        return None
    return f"{origin.namespace}/{origin.model}" if origin.key[1:3] != own else None


def _together(
    uploads: Sequence[BlobUpload], stop: threading.Event, cancel: threading.Event, remotes: Sequence[Remote]
) -> Iterator[Progress]:
    """Run the uploads, which use `remotes`; their events. The first failure ends all."""
    pool = ThreadPoolExecutor(_N_BLOBS_AT_ONCE, thread_name_prefix="push")
    try:
        running = [pool.submit(upload.run) for upload in uploads]
        for upload, future in zip(uploads, running, strict=True):
            for completed in _counts(upload, future, cancel):
                _raise_failure(running)
                yield pushing(upload.blob.digest, upload.blob.size, completed)
        _raise_failure(running)
    except BaseException:
        stop.set()
        # A registry that reads a blob before it answers may take half an hour.
        for remote in remotes:
            remote.abort()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _counts(upload: BlobUpload, future: Future[None], cancel: threading.Event) -> Iterator[int]:
    """Bytes that are there, whenever it is time to tell, until all are. Raises PullCanceledError."""
    while not future.done():
        yield upload.completed
        wait([future], _INTERVAL_S)
        check_canceled(cancel)
    yield upload.completed


def _raise_failure(running: Sequence[Future[None]]) -> None:
    for future in running:
        if future.done() and (error := future.exception()) is not None:
            raise error


@contextlib.contextmanager
def _explaining(name: Name) -> Iterator[None]:
    """Turn a registry's refusal, and a blob that is not what it should be, into what the user can do about it."""
    try:
        yield
    except RemoteError as error:
        if error.status in (401, 403):
            hint = f"sign in at {error.host}, or give a user name and password that may write to {name.short}"
            raise PushDeniedError(name.short, error.detail, hint=hint) from error
        raise
    except DigestMismatchError as error:
        reason = f"blob {error.want} is damaged: its bytes have the digest {error.got}"
        raise BrokenModelError(name.short, reason, hint=f"localllm pull {name.short}") from error


def _push_manifest(remote: Remote, access: Access, name: Name, manifest: Manifest, cancel: threading.Event) -> None:
    """The manifest's bytes as they are, so that its digest stays what it is."""
    path = f"/v2/{name.namespace}/{name.model}/manifests/{name.tag}"
    n_failed = 0
    while True:
        check_canceled(cancel)
        try:
            remote.send(
                "PUT", path, actions=ACTIONS, headers={"Content-Type": manifest.media_type}, content=manifest.raw
            )
            return
        except UnreachableError:
            n_failed += 1
            if n_failed >= access.patience.n_tries:
                raise
            access.patience.wait(n_failed - 1, cancel)

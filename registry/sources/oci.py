"""`[http[s]://][host/][namespace/]model[:tag]`: a model in a registry of Ollama's or OCI's protocol.

`GET /v2/<ns>/<model>/manifests/<tag>` gives the manifest, `GET /v2/<ns>/<model>/blobs/<digest>` each blob. It knows
nothing of how requests are allowed or blobs brought.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator

from registry.create import write_model
from registry.download import Wants, bring_blob, missing_bytes
from registry.durable import make_directories, require_space, writing
from registry.errors import (
    BrokenModelError,
    ManifestError,
    NotInSourceError,
    RemoteError,
    RemoteNotFoundError,
    UnreachableError,
)
from registry.manifest import LAYER_MEDIA_TYPE_PREFIX, MANIFEST_MEDIA_TYPE, Layer, Manifest, parse_manifest
from registry.names import Name, parse_name
from registry.progress import PULLING_MANIFEST, VERIFYING, Progress, check_canceled
from registry.remote import Remote
from registry.sources.base import Source, Wanted
from registry.store import Store

ACCEPT = f"{MANIFEST_MEDIA_TYPE}, application/vnd.oci.image.manifest.v1+json"


class OCISource(Source):
    """A model by its name, from the host that the name says."""

    def local_name(self, location: str) -> Name:
        """The name itself."""
        return parse_name(location)

    def pull(self, wanted: Wanted, store: Store, cancel: threading.Event) -> Iterator[Progress]:
        """See Source.pull; `inspect` is not asked, since the manifest says what the model is."""
        with wanted.access.remote(parse_name(wanted.location), cancel) as remote:
            yield PULLING_MANIFEST
            raw = read_manifest(remote)
            yield from bring_model(wanted, store, remote, raw, cancel)


def read_manifest(remote: Remote) -> bytes:
    """The bytes of the manifest that the name of `remote` has there.

    Raises:
        NotInSourceError: there is none.
        ManifestError: it is not to be had. PullCanceledError.
    """
    name = remote.name
    try:
        return remote.send("GET", manifest_path(name), headers={"Accept": ACCEPT}).content
    except RemoteNotFoundError as error:
        raise NotInSourceError(
            name.short, hint=f"{name.host} has no {name.namespace}/{name.model}:{name.tag}"
        ) from error
    except (RemoteError, UnreachableError) as error:
        raise ManifestError(str(error), hint=error.hint) from error


def manifest_path(name: Name) -> str:
    """Where a registry has the manifest of a name."""
    return f"/v2/{name.namespace}/{name.model}/manifests/{name.tag}"


def blob_path(name: Name, digest: str) -> str:
    """Where a registry has a blob."""
    return f"/v2/{name.namespace}/{name.model}/blobs/{digest}"


def bring_model(
    wanted: Wanted, store: Store, remote: Remote, raw: bytes, cancel: threading.Event
) -> Iterator[Progress]:
    """Everything after the manifest: its blobs, then the name, which appears when all of them are there."""
    manifest = _checked(raw, wanted.name)
    layers = [*manifest.layers, *([manifest.config] if manifest.config.digest else [])]
    wants = [_wants(remote, layer) for layer in {layer.digest: layer for layer in layers}.values()]
    with store.staging(secrets.token_hex(16)) as staging:
        store.pin(staging, manifest.digests)
        yield from bring_blobs(wanted, store, wants, cancel)
        yield VERIFYING
        check_canceled(cancel)
        yield from write_model(store, wanted.name, raw)


def bring_blobs(wanted: Wanted, store: Store, wants: Iterable[Wants], cancel: threading.Event) -> Iterator[Progress]:
    """Some blobs, one after the other (pinned by the caller).

    Raises:
        NoSpaceError: before anything is asked for, when they cannot all fit.
    """
    wants = list(wants)
    with writing(store.blobs.directory):
        make_directories(store.blobs.directory)
    require_space(store.blobs.directory, missing_bytes(store, wants))
    for want in wants:
        yield from bring_blob(store, want, wanted.access.patience, cancel)


def _wants(remote: Remote, layer: Layer) -> Wants:
    path = blob_path(remote.name, layer.digest)
    return Wants(layer.digest, layer.size, lambda headers: remote.stream("GET", path, headers=headers))


def _checked(raw: bytes, name: Name) -> Manifest:
    try:
        manifest = parse_manifest(raw, name.short)
    except BrokenModelError as error:
        raise ManifestError(str(error)) from error
    if not any(layer.media_type.startswith(LAYER_MEDIA_TYPE_PREFIX) for layer in manifest.layers):
        kinds = ", ".join(sorted({layer.media_type for layer in manifest.layers})) or "none"
        raise ManifestError(f"{name.short} is not a model", hint=f"its layers are {kinds}")
    return manifest

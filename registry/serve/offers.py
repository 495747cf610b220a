"""Which models, manifests and blobs of a store a path of the registry protocol means; it knows nothing of HTTP.

    repository = [ host "/" ] [ namespace "/" ] model        whatever the case

Without a host, models of the default registry are meant, and where it has none of that name, those of the one other
host that has: what came from `hf.co/user/repo` is offered as `user/repo` too, which the names of clients can say.
A blob is offered below a name only if one of the name's manifests lists it, and only in full length.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from registry.errors import BrokenModelError, ModelNotFoundError
from registry.manifest import Layer, Manifest
from registry.names import DEFAULT_HOST, DEFAULT_NAMESPACE, Name
from registry.store import Store


def repositories(store: Store) -> list[str]:
    """The paths of all models, in lower case, each once and in order."""
    return sorted({_path(name) for name in store.names()})


def names_of(store: Store, path: str) -> list[Name]:
    """The names in the store, one a tag, that a repository's path means; none where it means nothing or is unclear."""
    *outer, model = path.lower().split("/")
    if len(outer) > 2:
        return []
    host = outer[0] if len(outer) == 2 else None
    namespace = outer[-1] if outer else DEFAULT_NAMESPACE
    found = [name for name in store.names() if name.key[1:3] == (namespace, model)]
    chosen = host or _host_of(found)
    return [name for name in found if name.key[0] == chosen]


def manifest_of(store: Store, names: Sequence[Name], reference: str) -> Manifest | None:
    """The manifest that a tag or a digest means among the names of a repository."""
    if reference.startswith("sha256:"):
        wanted = reference.removeprefix("sha256:").lower()
        return next((manifest for manifest in _manifests(store, names) if manifest.digest == wanted), None)
    tagged = sorted((name for name in names if name.key[3] == reference.lower()), key=lambda n: n.tag != reference)
    return next(_manifests(store, tagged), None)


def blob_of(store: Store, names: Sequence[Name], digest: str) -> Layer | None:
    """What the names' manifests say of a blob, None where they do not list it or the store lacks it."""
    for manifest in _manifests(store, names):
        for layer in (manifest.config, *manifest.layers):
            if layer.digest == digest and store.blobs.has(digest, layer.size):
                return layer
    return None


def _path(name: Name) -> str:
    host, namespace, model, _ = name.key
    return f"{namespace}/{model}" if host == DEFAULT_HOST else f"{host}/{namespace}/{model}"


def _host_of(names: Sequence[Name]) -> str | None:
    hosts = {name.key[0] for name in names}
    if DEFAULT_HOST in hosts:
        return DEFAULT_HOST
    return hosts.pop() if len(hosts) == 1 else None


def _manifests(store: Store, names: Sequence[Name]) -> Iterator[Manifest]:
    """The readable ones; a name that goes meanwhile is none."""
    for name in names:
        with contextlib.suppress(BrokenModelError, ModelNotFoundError):
            yield store.manifest(name)

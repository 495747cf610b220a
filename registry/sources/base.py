"""What every source is: one object that turns a location into a model in the store.

A source knows its own transport only. It yields the events of a pull in Ollama's order
(`pulling manifest`, `pulling <12 hex>`, `verifying sha256 digest`, `writing manifest`, `success`) and
leaves the models of the store as they were when it raises, is closed, or its cancel event is set.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

from registry.catalog import CatalogEntry
from registry.create import Inspect, ModelContents, ModelFacts, store_layers, write_model
from registry.names import Name
from registry.progress import Progress, check_canceled
from registry.remote import Access
from registry.staging import Staging, staged_bytes, staging_path, try_staging
from registry.store import Store

_POLL_S = 0.1


@dataclass(frozen=True)
class Wanted:
    """What to pull: `location` is the reference without its prefix, `entry` the catalog's if it came from there.

    `access` is what the user allows, and who he is.
    """

    name: Name
    location: str
    inspect: Inspect
    entry: CatalogEntry | None = None
    access: Access = field(default_factory=Access)


class Source(ABC):
    """A kind of place that models come from."""

    @abstractmethod
    def local_name(self, location: str) -> Name:
        """The name that a model of this location gets in the store. Raises SourceError."""

    @abstractmethod
    def pull(self, wanted: Wanted, store: Store, cancel: threading.Event) -> Iterator[Progress]:
        """Bring the model into the store under `wanted.name`, yielding events.

        Raises:
            RegistryError, and whatever `wanted.inspect` raises to refuse a GGUF.
        """


def wait_for_staging(
    store: Store, key: str, cancel: threading.Event, waiting: Progress
) -> Generator[Progress, None, Staging]:
    """Open a staging folder; while another pull of the same has it, show how far that one is.

    Raises:
        PullCanceledError, NoSpaceError, StoreNotWritableError.
    """
    while (staging := try_staging(store.blobs.directory, key)) is None:
        check_canceled(cancel)
        done = staged_bytes(staging_path(store.blobs.directory, key))
        completed = min(done, waiting.total) if waiting.total else done
        yield Progress(waiting.status, waiting.digest, waiting.total, completed)
        cancel.wait(_POLL_S)
    return staging


def inspect_blobs(wanted: Wanted, store: Store, staging: Staging, digests: Sequence[str]) -> ModelFacts:
    """What the GGUF in some blobs says of itself; one that is refused does not stay in the store.

    Raises: whatever `wanted.inspect` raises.
    """
    try:
        return wanted.inspect([store.blobs.path(digest) for digest in digests])
    except Exception:
        for digest in digests:
            staging.unpin(digest)
        store.remove_unused(digests)
        raise


def finish_pull(
    wanted: Wanted, store: Store, staging: Staging, weights: Sequence[str], facts: ModelFacts, licenses: Sequence[str]
) -> Iterator[Progress]:
    """Write the small layers and the manifest of weights that are in the store: the last events of every pull."""
    entry = wanted.entry
    contents = ModelContents(
        weights=weights,
        facts=facts,
        template=entry.template if entry else None,
        system=entry.system if entry else None,
        params=entry.params if entry else {},
        licenses=licenses,
    )
    raw, _ = store_layers(store, contents, staging)
    yield from write_model(store, wanted.name, raw)

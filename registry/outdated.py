"""Whether registries have newer models than the store: compares digests of manifests; it downloads no blobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum

from registry.catalog import Catalog
from registry.digests import digest_of
from registry.errors import NotInSourceError, RegistryError, UnreachableError
from registry.names import Name
from registry.remote import Access
from registry.sources.oci import read_manifest

_N_AT_ONCE = 8


class State(Enum):
    """What is known of a model, beside what its registry has."""

    CURRENT = "up to date"
    OUTDATED = "outdated"
    LOCAL = "only here"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True)
class Comparison:
    """One model. `reference` is what to pull (its name, with `http://` where only that works), `reason` of UNKNOWN."""

    name: Name
    state: State
    reference: str
    reason: str = ""


def compare(models: Iterable[tuple[Name, str]], catalog: Catalog, access: Access) -> Iterator[Comparison]:
    """Ask the registry of each model (name, and digest of its manifest: 64 hex), several at once, in the order given.

    Models of the catalog have one version; those that their registry does not know are only here.
    """
    with ThreadPoolExecutor(_N_AT_ONCE) as pool:
        yield from pool.map(lambda model: _compare(model[0], model[1], catalog, access), models)


def _compare(name: Name, digest: str, catalog: Catalog, access: Access) -> Comparison:
    if catalog.find(name) is not None:
        return Comparison(name, State.CURRENT, name.short)
    try:
        asked, remote_digest = _ask(name, access)
    except NotInSourceError:
        return Comparison(name, State.LOCAL, name.short)
    except RegistryError as error:
        return Comparison(name, State.UNKNOWN, name.short, str(error))
    reference = name.short if asked.scheme == name.scheme else str(asked)
    return Comparison(name, State.CURRENT if digest == remote_digest else State.OUTDATED, reference)


def _ask(name: Name, access: Access) -> tuple[Name, str]:
    """The name by which its registry could be asked, and the digest of its manifest there (64 hex).

    The store does not know that a model came over `http://`; where the user allows it, that is tried too.
    """
    try:
        with access.remote(name) as remote:
            return name, digest_of(read_manifest(remote)).removeprefix("sha256:")
    except RegistryError as error:
        if not (access.insecure and name.scheme == "https" and isinstance(error.__cause__, UnreachableError)):
            raise
    plain = replace(name, scheme="http")
    with access.remote(plain) as remote:
        return plain, digest_of(read_manifest(remote)).removeprefix("sha256:")

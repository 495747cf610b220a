"""A model name in, verified bytes on disk out, and the reverse; it knows nothing of inference."""

from registry.catalog import Catalog, CatalogEntry
from registry.create import Inspect, ModelContents, ModelFacts, create_from_gguf
from registry.digests import parse_digest
from registry.errors import (
    BrokenModelError,
    CatalogError,
    DigestMismatchError,
    DownloadError,
    InsecureProtocolError,
    InvalidDigestError,
    InvalidNameError,
    ManifestError,
    ModelNotFoundError,
    NoSpaceError,
    NotInSourceError,
    PipError,
    PullCanceledError,
    RegistryError,
    RemoteError,
    RemoteNotFoundError,
    SourceError,
    StoreNotWritableError,
    UnreachableError,
)
from registry.manifest import Layer, Manifest, ModelConfig
from registry.names import Name, parse_name
from registry.progress import Progress
from registry.pull import local_name, pull
from registry.remote import Access, Credentials
from registry.store import ModelSummary, PruneReport, ResolvedModel, Store

__all__ = [
    "Access",
    "BrokenModelError",
    "Catalog",
    "CatalogEntry",
    "CatalogError",
    "Credentials",
    "DigestMismatchError",
    "DownloadError",
    "InsecureProtocolError",
    "Inspect",
    "InvalidDigestError",
    "InvalidNameError",
    "Layer",
    "Manifest",
    "ManifestError",
    "ModelConfig",
    "ModelContents",
    "ModelFacts",
    "ModelNotFoundError",
    "ModelSummary",
    "Name",
    "NoSpaceError",
    "NotInSourceError",
    "PipError",
    "Progress",
    "PruneReport",
    "PullCanceledError",
    "RegistryError",
    "RemoteError",
    "RemoteNotFoundError",
    "ResolvedModel",
    "SourceError",
    "Store",
    "StoreNotWritableError",
    "UnreachableError",
    "create_from_gguf",
    "local_name",
    "parse_digest",
    "parse_name",
    "pull",
]

"""A model name in, verified bytes on disk out, and the reverse; it knows nothing of inference."""

from registry.errors import (
    BrokenModelError,
    CatalogError,
    DigestMismatchError,
    InvalidDigestError,
    InvalidNameError,
    ModelNotFoundError,
    NoSpaceError,
    NotInSourceError,
    PipError,
    PullCanceledError,
    RegistryError,
    SourceError,
    StoreNotWritableError,
    UnsupportedSourceError,
)
from registry.manifest import Layer, Manifest, ModelConfig
from registry.names import Name, parse_name
from registry.store import ModelSummary, PruneReport, ResolvedModel, Store

__all__ = [
    "BrokenModelError",
    "CatalogError",
    "DigestMismatchError",
    "InvalidDigestError",
    "InvalidNameError",
    "Layer",
    "Manifest",
    "ModelConfig",
    "ModelNotFoundError",
    "ModelSummary",
    "Name",
    "NoSpaceError",
    "NotInSourceError",
    "PipError",
    "PruneReport",
    "PullCanceledError",
    "RegistryError",
    "ResolvedModel",
    "SourceError",
    "Store",
    "StoreNotWritableError",
    "UnsupportedSourceError",
    "parse_name",
]

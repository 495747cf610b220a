"""What the files of a new model are, told from their names and their GGUF headers; it neither makes nor runs any."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from localllm.errors import GGUFError
from localllm.gguf.header import Header
from localllm.gguf.parts import open_parts
from localllm.server.errors import APIError
from registry.blobs import Blobs

NOT_GGUF = "supplied file was not in GGUF format"
Files = Mapping[str, str]
"""Relative path with slashes: digest of the blob, both checked."""


@dataclass
class Parts:
    """The digests of a model's files by what they are; `weights` are one GGUF, or its parts in order."""

    weights: list[str] = field(default_factory=list)
    projectors: list[str] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)
    drafts: list[str] = field(default_factory=list)


def require_blobs(blobs: Blobs, files: Files) -> None:
    """Raises: APIError with status 400 for a blob that the store does not have."""
    for name, digest in files.items():
        if not blobs.has(digest):
            raise APIError(400, f'blob "{digest}" of "{name}" does not exist', hint=f"POST /api/blobs/{digest} first")


def format_of(blobs: Blobs, files: Files) -> str:
    """`safetensors` or `gguf`: by the names, else by the first bytes. Raises: APIError with status 400."""
    if not files:
        raise APIError(400, "no files provided to convert")
    names = [name.lower() for name in files]
    if any(name.endswith(".safetensors") for name in names):
        return "safetensors"
    if any(name.endswith(".gguf") for name in names) or all(_is_gguf(blobs, digest) for digest in files.values()):
        return "gguf"
    torch = next((name for name in files if name.lower().endswith((".bin", ".pt", ".pth"))), None)
    raise APIError(400, "unknown type", hint=f"{torch}: convert it to safetensors first" if torch else None)


def sort_ggufs(blobs: Blobs, files: Files) -> Parts:
    """What each of some GGUFs is. Raises: APIError with status 400 for what is none, or for two models."""
    found = Parts()
    kinds = {"model": found.weights, "projector": found.projectors, "adapter": found.adapters}
    for name, digest in files.items():
        if not _is_gguf(blobs, digest):
            raise APIError(400, NOT_GGUF, hint=f'"{name}" is none')
        with _told_as(blobs, files), Header(blobs.path(digest)) as header:
            kinds[_kind(header.metadata)].append(digest)
    found.weights = _ordered(blobs, files, found.weights)
    return found


def _ordered(blobs: Blobs, files: Files, weights: list[str]) -> list[str]:
    if not weights:
        return weights
    digests = {blobs.path(digest): digest for digest in weights}
    with _told_as(blobs, files):
        with Header(next(iter(digests))) as header:
            if len(weights) > 1 and header.metadata.get("split.count", 1) in (0, 1):
                names = ", ".join(name for name, digest in files.items() if digest in weights)
                raise APIError(400, f"several models were given: {names}", hint="give one of them")
        headers = open_parts(list(digests))
        for header in headers:
            header.close()
    return [digests[header.path] for header in headers]


def check_adapter(blobs: Blobs, digest: str, base: Mapping[str, Any]) -> None:
    """Refuse what is no LoRA adapter of the base, whose GGUF has this metadata. Raises: APIError with status 400."""
    with Header(blobs.path(digest)) as header:
        metadata = header.metadata
        if _kind(metadata) != "adapter" or metadata.get("adapter.type", "lora") != "lora":
            raise APIError(400, "the adapter is no LoRA adapter: its general.type is not adapter")
        own, wanted = metadata.get("general.architecture"), base.get("general.architecture")
        if own != wanted:
            raise APIError(400, f'the adapter is made for "{own}", and the model is "{wanted}"')


def _kind(metadata: Mapping[str, Any]) -> str:
    kind = metadata.get("general.type")
    if kind == "adapter":
        return "adapter"
    is_projector = kind in ("projector", "mmproj") or metadata.get("general.architecture") == "clip"
    return "projector" if is_projector else "model"


def _is_gguf(blobs: Blobs, digest: str) -> bool:
    with open(blobs.path(digest), "rb") as file:
        return file.read(4) == b"GGUF"


@contextlib.contextmanager
def _told_as(blobs: Blobs, files: Files) -> Iterator[None]:
    """Faults of the client's files are the client's, and are told by the names that it gave them."""
    try:
        yield
    except GGUFError as error:
        text = str(error)
        for name, digest in files.items():
            text = text.replace(str(blobs.path(digest)), name)
        raise APIError(400, text, hint=error.hint) from error

"""Manifests and config blobs, read with suspicion and written as Ollama writes them; it knows nothing of files.

A manifest names one config blob and the layers of a model, each with a media type, a
digest and a size. The bytes a registry served are kept as they came: their sha256 is the
digest of the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from registry.digests import parse_digest
from registry.errors import BrokenModelError, InvalidDigestError

MANIFEST_MEDIA_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
OCI_MANIFEST_MEDIA_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_MEDIA_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_MEDIA_TYPE_PREFIX = "application/vnd.ollama.image."

# Far above any real one (a safetensors model has some thousand layers of 200 bytes).
MAX_MANIFEST_BYTES = 16 << 20


@dataclass(frozen=True)
class Layer:
    """One blob of a model. `size` in bytes; `digest` is `sha256:<hex>`, or "" for a config that does not exist."""

    media_type: str
    digest: str
    size: int
    name: str = ""
    from_model: str = ""

    @property
    def kind(self) -> str:
        """`model`, `template`, `params`, …: the media type without its prefix."""
        return self.media_type.removeprefix(LAYER_MEDIA_TYPE_PREFIX)

    def to_json(self) -> dict[str, Any]:
        """The object that stands in a manifest."""
        layer: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.from_model:
            layer["from"] = self.from_model
        if self.name:
            layer["name"] = self.name
        return layer


@dataclass(frozen=True)
class Manifest:
    """A parsed manifest beside the bytes it came from."""

    raw: bytes = field(repr=False)
    config: Layer
    layers: tuple[Layer, ...]

    @cached_property
    def digest(self) -> str:
        """The digest of the model: 64 hexadecimal digits, no prefix."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def media_type(self) -> str:
        """What the manifest says of itself; OCI's may leave it out, and then its config tells."""
        stated = json.loads(self.raw).get("mediaType")
        if isinstance(stated, str) and stated:
            return stated
        return OCI_MANIFEST_MEDIA_TYPE if ".oci." in self.config.media_type else MANIFEST_MEDIA_TYPE

    @property
    def size(self) -> int:
        """Bytes of the config and all layers."""
        return self.config.size + sum(layer.size for layer in self.layers)

    @property
    def digests(self) -> set[str]:
        """Every blob that the model needs."""
        return {layer.digest for layer in (self.config, *self.layers) if layer.digest}

    def of_kind(self, *kinds: str) -> list[Layer]:
        """The layers of some kinds, in the order of the manifest."""
        return [layer for layer in self.layers if layer.kind in kinds]

    @property
    def weights_digest(self) -> str:
        """What tells the weights from all others, "" without weights: see `digest_of_parts`."""
        return digest_of_parts([layer.digest.removeprefix("sha256:") for layer in self.of_kind("model")])


def digest_of_parts(digests: Sequence[str]) -> str:
    """What tells a GGUF from all others, 64 hex: the digest of its file; of a split one, the first part of which may be
    the same in several models, that of all parts' digests in order; "" of none."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if len(digests) > 1 else "".join(digests)


@dataclass(frozen=True)
class ModelConfig:
    """The config blob: what is known of a model without opening it. `fields` is the whole JSON object."""

    model_format: str = ""
    model_family: str = ""
    model_families: tuple[str, ...] = ()
    model_type: str = ""
    file_type: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


def parse_manifest(raw: bytes, subject: str) -> Manifest:
    """Read a manifest; `subject` names it in errors.

    Raises:
        BrokenModelError: not JSON, not an object of the right shape, or a digest or size that is nonsense.
    """
    if len(raw) > MAX_MANIFEST_BYTES:
        raise BrokenModelError(subject, f"the manifest has {len(raw)} bytes (at most {MAX_MANIFEST_BYTES})")
    document = parse_json_object(raw, subject)
    layers = document.get("layers")
    if layers is None:
        layers = []
    if not isinstance(layers, list):
        raise BrokenModelError(subject, "the layers of the manifest are not a list")
    config = _parse_layer(document.get("config"), subject, may_be_empty=True)
    return Manifest(raw, config, tuple(_parse_layer(layer, subject) for layer in layers))


def build_manifest(config: Layer, layers: Sequence[Layer]) -> bytes:
    """The bytes of a new manifest, in Ollama's own order of keys."""
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "config": config.to_json(),
        "layers": [layer.to_json() for layer in layers],
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def parse_config(raw: bytes, subject: str) -> ModelConfig:
    """Read a config blob; unknown fields are kept in `fields`. Raises BrokenModelError."""
    document = parse_json_object(raw, subject)
    families = document.get("model_families")
    return ModelConfig(
        model_format=_text(document, "model_format"),
        model_family=_text(document, "model_family"),
        model_families=tuple(str(family) for family in families) if isinstance(families, list) else (),
        model_type=_text(document, "model_type"),
        file_type=_text(document, "file_type"),
        fields=document,
    )


def parse_json_object(raw: bytes, subject: str) -> dict[str, Any]:
    """Raises BrokenModelError when `raw` is not a JSON object."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BrokenModelError(subject, f"not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise BrokenModelError(subject, "not a JSON object")
    return document


def _parse_layer(layer: object, subject: str, *, may_be_empty: bool = False) -> Layer:
    if may_be_empty and (layer is None or (isinstance(layer, dict) and not layer.get("digest"))):
        return Layer(CONFIG_MEDIA_TYPE, "", 0)
    if not isinstance(layer, dict):
        raise BrokenModelError(subject, "a layer of the manifest is not an object")
    size = layer.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise BrokenModelError(subject, f"a layer of the manifest has the size {size!r}")
    try:
        digest = parse_digest(_text(layer, "digest"))
    except InvalidDigestError as error:
        raise BrokenModelError(subject, f'a layer of the manifest has the digest "{error.digest}"') from error
    return Layer(_text(layer, "mediaType"), digest, size, _text(layer, "name"), _text(layer, "from"))


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""

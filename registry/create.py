"""New models from blobs that are in the store already; it knows nothing of what is inside a GGUF.

What a config blob says of the weights comes from the caller as `ModelFacts`, because only
the caller can read a GGUF.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from registry.digests import digest_of
from registry.errors import BrokenModelError
from registry.manifest import CONFIG_MEDIA_TYPE, LAYER_MEDIA_TYPE_PREFIX, Layer, build_manifest
from registry.names import Name
from registry.progress import REMOVING_UNUSED, SUCCESS, WRITING_MANIFEST, Progress
from registry.staging import Staging
from registry.store import Store


@dataclass(frozen=True)
class ModelFacts:
    """What the GGUF says of itself: architecture, count of weights, and quant (`Q4_K_M`)."""

    family: str
    n_parameters: int
    file_type: str
    families: tuple[str, ...] = ()


# Reads the GGUF in some files (several: its parts, in order); may raise what it likes to refuse it.
Inspect = Callable[[Sequence[Path]], ModelFacts]


@dataclass(frozen=True)
class ModelContents:
    """What a new model is made of.

    `weights`, `projectors`, `adapters` and `drafts` are digests of blobs; the weights are one GGUF, or its parts in
    order. `config` holds further fields of the config blob. `origins` says of which model a file is that was inherited;
    `made` are the files that are new with this model.
    """

    weights: Sequence[str]
    facts: ModelFacts
    projectors: Sequence[str] = ()
    adapters: Sequence[str] = ()
    drafts: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    made: Collection[str] = ()
    template: str | None = None
    system: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] = ()
    licenses: Sequence[str] = ()

    def files(self) -> Iterator[tuple[str, str]]:
        """(kind, digest) of every file, in the order of the manifest's layers."""
        for kind in ("model", "projector", "adapter", "draft"):
            digests: Sequence[str] = self.weights if kind == "model" else getattr(self, f"{kind}s")
            yield from ((kind, digest) for digest in digests)


def create_from_gguf(store: Store, name: Name, contents: ModelContents) -> Iterator[Progress]:
    """Make `name` a model of these contents, over what it was; yields the events of `create`.

    Raises:
        BrokenModelError: a file is not in the store.
        NoSpaceError, StoreNotWritableError.
    """
    with store.staging(secrets.token_hex(16)) as staging:
        raw, layers = store_layers(store, contents, staging)
        for layer, is_new in layers:
            yield Progress(f"{'creating new' if is_new else 'using existing'} layer {layer.digest}")
        yield from write_model(store, name, raw)


def store_layers(store: Store, contents: ModelContents, staging: Staging) -> tuple[bytes, list[tuple[Layer, bool]]]:
    """Store what is not there yet; gives the manifest's bytes, and each layer (config last) with whether it is new.

    The blobs are pinned in `staging`: keep it open until the manifest is written.
    """
    texts = [(kind, text.encode()) for kind, text in _texts(contents)]
    config = _config_json(contents).encode()
    digests = [digest_of(content) for _, content in texts]
    store.pin(staging, [*(digest for _, digest in contents.files()), *digests, digest_of(config)])
    layers = [
        (_file_layer(store, kind, digest, contents), digest in contents.made) for kind, digest in contents.files()
    ]
    layers += [_stored(store, LAYER_MEDIA_TYPE_PREFIX + kind, content) for kind, content in texts]
    config_layer = _stored(store, CONFIG_MEDIA_TYPE, config)
    raw = build_manifest(config_layer[0], [layer for layer, _ in layers])
    return raw, [*layers, config_layer]


def write_model(store: Store, name: Name, raw: bytes) -> Iterator[Progress]:
    """The end of every pull and create: write the manifest, drop what only the former one needed."""
    yield WRITING_MANIFEST
    unused = store.write_manifest(name, raw)
    if unused:
        yield REMOVING_UNUSED
        store.remove_unused(unused)
    yield SUCCESS


def format_parameter_count(n_parameters: int) -> str:
    """`134.52M`, `8.0B`, `7B`: whole numbers plain, else one decimal for billions and two for millions."""
    for unit, scale, decimals in (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 0)):
        if n_parameters >= scale:
            places = 0 if n_parameters % scale == 0 else decimals
            return f"{n_parameters / scale:.{places}f}{unit}"
    return str(n_parameters)


def _texts(contents: ModelContents) -> Iterator[tuple[str, str]]:
    """The layers beside the files: (kind, text)."""
    if contents.template is not None:
        yield "template", contents.template
    if contents.system is not None:
        yield "system", contents.system
    if contents.params:
        yield "params", json.dumps(dict(contents.params), ensure_ascii=False)
    if contents.messages:
        yield "messages", json.dumps([dict(message) for message in contents.messages], ensure_ascii=False)
    for text in contents.licenses:
        yield "license", text


def _config_json(contents: ModelContents) -> str:
    facts = contents.facts
    config = {
        "model_format": "gguf",
        "model_family": facts.family,
        "model_families": list(facts.families or (facts.family,)),
        "model_type": format_parameter_count(facts.n_parameters),
        "file_type": facts.file_type,
        **contents.config,
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {
            "type": "layers",
            "diff_ids": [
                *(digest for _, digest in contents.files()),
                *(digest_of(text.encode()) for _, text in _texts(contents)),
            ],
        },
    }
    return json.dumps(config, ensure_ascii=False)


def _file_layer(store: Store, kind: str, digest: str, contents: ModelContents) -> Layer:
    size = store.blobs.size(digest)
    if size is None:
        raise BrokenModelError(f"blob {digest}", "not in the store")
    return Layer(LAYER_MEDIA_TYPE_PREFIX + kind, digest, size, from_model=contents.origins.get(digest, ""))


def _stored(store: Store, media_type: str, content: bytes) -> tuple[Layer, bool]:
    digest, is_new = store.blobs.put(content)
    return Layer(media_type, digest, len(content)), is_new

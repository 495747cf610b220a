"""Models made from blobs, the catalog's format, and the shape of events."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from registry import (
    BrokenModelError,
    Catalog,
    ModelContents,
    ModelFacts,
    Progress,
    Store,
    create_from_gguf,
    parse_name,
)
from registry.catalog import CatalogEntry
from registry.create import format_parameter_count
from registry.digests import digest_of
from registry.errors import CatalogError


def test_create_writes_every_layer_once(store: Store, gguf: bytes, facts: ModelFacts) -> None:
    digest, _ = store.blobs.put(gguf)
    contents = ModelContents(
        weights=[digest],
        facts=facts,
        template="{{ .Prompt }}",
        system="short",
        params={"stop": ["é"], "temperature": 0.5},
        messages=[{"role": "user", "content": "hi"}],
        licenses=["one", "two"],
    )
    events = list(create_from_gguf(store, parse_name("m"), contents))
    assert events[0].status == f"using existing layer {digest}"
    assert [event.status.split(" layer ")[0] for event in events[1:8]] == ["creating new"] * 7
    assert [event.status for event in events[8:]] == ["writing manifest", "success"]
    model = store.resolve(parse_name("m"))
    assert [layer.kind for layer in model.manifest.layers] == [
        "model", "template", "system", "params", "messages", "license", "license",
    ]  # fmt: skip
    assert (model.template, model.system, model.licenses) == ("{{ .Prompt }}", "short", ["one", "two"])
    assert model.params == {"stop": ["é"], "temperature": 0.5}
    assert model.messages == [{"role": "user", "content": "hi"}]
    again = [event.status for event in create_from_gguf(store, parse_name("m"), contents)]
    assert all(status.startswith("using existing layer") for status in again[:8])
    assert store.resolve(parse_name("m")).digest == model.digest


def test_create_writes_json_as_ollama_reads_it(store: Store, gguf: bytes, facts: ModelFacts) -> None:
    digest, _ = store.blobs.put(gguf)
    list(create_from_gguf(store, parse_name("m"), ModelContents([digest], facts)))
    manifest = store.manifest(parse_name("m"))
    document = json.loads(manifest.raw)
    assert document["schemaVersion"] == 2
    assert document["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert document["config"]["mediaType"] == "application/vnd.docker.container.image.v1+json"
    assert document["layers"] == [
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": len(gguf)}
    ]
    config = json.loads(store.blobs.read(document["config"]["digest"], 10_000))
    assert config == {
        "model_format": "gguf",
        "model_family": "llama",
        "model_families": ["llama"],
        "model_type": "134.52M",
        "file_type": "Q4_1",
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    path = store.root / "manifests/registry.ollama.ai/library/m/latest"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == manifest.digest


def test_create_over_a_model_removes_what_only_that_needed(store: Store, gguf: bytes, facts: ModelFacts) -> None:
    digest, _ = store.blobs.put(gguf)
    list(create_from_gguf(store, parse_name("m"), ModelContents([digest], facts, system="old")))
    events = list(create_from_gguf(store, parse_name("m"), ModelContents([digest], facts, system="new")))
    statuses = [event.status for event in events[-3:]]
    assert statuses == ["writing manifest", "removing unused layers", "success"]
    assert not store.blobs.has(digest_of(b"old"))


def test_create_needs_its_weights(store: Store, facts: ModelFacts) -> None:
    with pytest.raises(BrokenModelError, match="not in the store"):
        list(create_from_gguf(store, parse_name("m"), ModelContents(["sha256:" + "0" * 64], facts)))
    assert store.models() == []


@pytest.mark.parametrize(
    ("n_parameters", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1K"),
        (1_500_000, "1.50M"),
        (134_515_008, "134.52M"),
        (137_000_000, "137M"),
        (8_030_261_312, "8.0B"),
        (7_000_000_000, "7B"),
    ],
)
def test_parameter_counts(n_parameters: int, text: str) -> None:
    assert format_parameter_count(n_parameters) == text


def test_progress_leaves_out_what_is_unknown() -> None:
    assert Progress("success").to_json() == {"status": "success"}
    digest = "sha256:" + "a" * 64
    assert Progress("pulling x", digest, 10).to_json() == {"status": "pulling x", "digest": digest, "total": 10}


# ---- the catalog


@pytest.fixture
def entry() -> dict[str, Any]:
    return {"about": "a", "license": "MIT", "source": "pip:x", "sha256": "0" * 64, "size": 1}


def test_a_minimal_entry(entry: dict[str, Any]) -> None:
    catalog = Catalog({"x:1b": entry})
    found = catalog.find(parse_name("X:1B"))
    assert isinstance(found, CatalogEntry)
    assert (found.weights.digest, found.download_size, found.params) == ("sha256:" + "0" * 64, 0, {})
    assert catalog.find(parse_name("x")) is None
    assert catalog.find(parse_name("other.example/library/x:1b")) is None
    assert list(catalog) == [found]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, 'unknown key "colour"'),
        ({"weights": "x"}, 'unknown key "weights"'),
        ({"about": None}, 'lacks "about"|"about" .* is not a str'),
        ({"size": "1"}, '"size" of "x" in the catalog is not a int'),
        ({"sha256": "0" * 63}, "not 64 lower-case"),
        ({"sha256": "A" * 64}, "not 64 lower-case"),
        ({"aliases": ["a b"]}, "is not a model name"),
        ({"aliases": ["h/n/m"]}, "names a host"),
        ({"params": []}, '"params" of "x"'),
        ({"license_files": [{}]}, 'lacks "sha256"'),
    ],
)
def test_a_bad_entry_is_an_error(entry: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        Catalog({"x": {**entry, **change}})


def test_a_missing_key_is_an_error(entry: dict[str, Any]) -> None:
    for key in entry:
        with pytest.raises(CatalogError, match=f'lacks "{key}"'):
            Catalog({"x": {other: value for other, value in entry.items() if other != key}})


def test_a_name_given_twice_is_an_error(entry: dict[str, Any]) -> None:
    with pytest.raises(CatalogError, match='the catalog has "X:latest" twice'):
        Catalog({"x": entry, "y": {**entry, "aliases": ["X"]}})

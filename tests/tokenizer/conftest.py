"""Turns recorded vocabularies into GGUF files and tokenizers."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localllm.gguf import open_gguf
from localllm.tokenizer import Tokenizer, load_tokenizer

SEPARATOR = "\n__ggml_vocab_test__\n"


def _metadata(models: ModuleType, values: dict[str, Any]) -> list[tuple[str, int, Any]]:
    kinds = {bool: models.BOOL, int: models.U32, float: models.F32, str: models.STRING, list: models.ARRAY}
    return [(k, kinds[type(v)], (models.I32, v) if isinstance(v, list) else v) for k, v in values.items()]


def _vocabulary(models: ModuleType, recorded: dict[str, Any]) -> list[tuple[str, int, Any]]:
    """A GGUF's metadata; ids that were left out get a text that occurs nowhere."""
    n = recorded["n_vocab"]
    tokens = [f"\ufdd0{i}" for i in range(n)]
    types, scores = [models.NORMAL] * n, [0.0] * n
    for i, text in recorded["tokens"].items():
        tokens[int(i)] = text
    for i, kind in recorded["types"].items():
        types[int(i)] = kind
    kvs = _metadata(models, recorded["metadata"])
    kvs.append(("tokenizer.ggml.tokens", models.ARRAY, (models.STRING, tokens)))
    kvs.append(("tokenizer.ggml.token_type", models.ARRAY, (models.I32, types)))
    if recorded["scores"] is not None:
        for i, score in recorded["scores"].items():
            scores[int(i)] = score
        kvs.append(("tokenizer.ggml.scores", models.ARRAY, (models.F32, scores)))
    if recorded["merges"] is not None:
        kvs.append(("tokenizer.ggml.merges", models.ARRAY, (models.STRING, recorded["merges"])))
    return kvs


@pytest.fixture(scope="session")
def published_vectors(fixtures_dir: Path) -> Callable[[str], list[tuple[str, list[int]]]]:
    """`published_vectors(name)`: texts and the ids llama.cpp publishes for them (no specials added or parsed)."""

    def read(name: str, folder: Path = fixtures_dir / "tokenizer") -> list[tuple[str, list[int]]]:
        texts = (folder / f"{name}.inp").read_bytes().decode().split(SEPARATOR)
        lines = (folder / f"{name}.out").read_text().split("\n")
        return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines, strict=False)]

    return read


@pytest.fixture(scope="session")
def published_tokenizer(
    fixtures_dir: Path, tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Tokenizer]:
    """`published_tokenizer(name)`: the tokenizer of a recorded vocabulary; made once."""
    made: dict[str, Tokenizer] = {}

    def load(name: str) -> Tokenizer:
        if name not in made:
            recorded = json.loads(lzma.decompress((fixtures_dir / "tokenizer" / f"{name}.json.xz").read_bytes()))
            path = tmp_path_factory.mktemp(name) / "vocab.gguf"
            tiny_models.write_gguf(path, _vocabulary(tiny_models, recorded), [])
            with open_gguf(path) as f:
                made[name] = load_tokenizer(f)
            path.unlink()
        return made[name]

    return load


@pytest.fixture
def make_tokenizer(tmp_path: Path, tiny_models: ModuleType) -> Callable[..., Tokenizer]:
    """`make_tokenizer(tokens, types, merges, scores, **metadata)`; metadata keys without `tokenizer.ggml.`.

    Keys that start with `general_` are those of `general.`. The model is "gpt2" unless it is given.
    """

    def make(
        tokens: list[str],
        types: list[int] | None = None,
        merges: list[str] | None = None,
        scores: list[float] | None = None,
        cache_dir: Path | None = None,
        **metadata: Any,
    ) -> Tokenizer:
        metadata = {"model": "gpt2", "pre": "gpt-2"} | metadata
        metadata = {k: v for k, v in metadata.items() if v is not None}
        named = {
            k.replace("general_", "general.") if k.startswith("general_") else f"tokenizer.ggml.{k}": v
            for k, v in metadata.items()
        }
        kvs = _metadata(tiny_models, named)
        kvs.append(("tokenizer.ggml.tokens", tiny_models.ARRAY, (tiny_models.STRING, tokens)))
        if types is not None:
            kvs.append(("tokenizer.ggml.token_type", tiny_models.ARRAY, (tiny_models.I32, types)))
        if scores is not None:
            kvs.append(("tokenizer.ggml.scores", tiny_models.ARRAY, (tiny_models.F32, scores)))
        if metadata.get("model") in ("gpt2", "gemma4"):
            kvs.append(("tokenizer.ggml.merges", tiny_models.ARRAY, (tiny_models.STRING, merges or [])))
        tiny_models.write_gguf(tmp_path / "vocab.gguf", kvs, [])
        with open_gguf(tmp_path / "vocab.gguf") as f:
            return load_tokenizer(f, cache_dir)

    return make


@pytest.fixture
def model_tokenizer(tmp_path: Path) -> Callable[..., Tokenizer]:
    """`model_tokenizer(writer, …)`: the tokenizer of a model that a writer of `tiny_models` writes."""

    def make(writer: Callable[..., Any], *args: Any, **kwargs: Any) -> Tokenizer:
        writer(tmp_path / "m.gguf", *args, **kwargs)
        with open_gguf(tmp_path / "m.gguf") as f:
            return load_tokenizer(f)

    return make

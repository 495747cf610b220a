"""Ids against llama.cpp's published ones, and on real models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from localllm.gguf import open_gguf
from localllm.tokenizer import Tokenizer, load_tokenizer

NAMES = [
    "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm",
    "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
]  # fmt: skip
VOCABS = "LOCALLLM_TEST_VOCABS"
Vectors = Callable[..., list[tuple[str, list[int]]]]


@pytest.mark.parametrize("name", NAMES)
def test_published_ids(name: str, published_vectors: Vectors, published_tokenizer: Callable[[str], Tokenizer]) -> None:
    tokenizer = published_tokenizer(name)
    vectors = published_vectors(name)
    assert len(vectors) >= 46
    for text, ids in vectors:
        assert tokenizer.encode(text, add_special=False, parse_special=False) == ids, text


@pytest.mark.parametrize("name", [name for name in NAMES if name != "bert-bge"])
def test_decode_gives_the_text_back(
    name: str, published_vectors: Vectors, published_tokenizer: Callable[[str], Tokenizer]
) -> None:
    tokenizer = published_tokenizer(name)
    for text, ids in published_vectors(name):
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parity
@pytest.mark.skipif(VOCABS not in os.environ, reason=f"{VOCABS} does not name a folder of ggml-vocab-*.gguf files")
@pytest.mark.parametrize("name", NAMES)
def test_whole_vocabulary(name: str, tmp_path: Path, published_vectors: Vectors) -> None:
    model = Path(os.environ[VOCABS]) / f"ggml-vocab-{name}.gguf"
    for suffix in ("inp", "out"):
        (tmp_path / f"{name}.{suffix}").write_bytes(Path(f"{model}.{suffix}").read_bytes())
    with open_gguf(model) as f:
        fresh, cached = load_tokenizer(f, tmp_path), load_tokenizer(f, tmp_path)
    for text, ids in published_vectors(name, tmp_path):
        assert fresh.encode(text, add_special=False, parse_special=False) == ids
        assert cached.encode(text, add_special=False, parse_special=False) == ids


@pytest.mark.parity
@pytest.mark.integration
@pytest.mark.parametrize(("name", "model"), [("smollm2", "smollm2:135m"), ("gemma3", "gemma3:270m")])
def test_real_model(name: str, model: str, fixtures_dir: Path, real_model: Callable[[str], Path]) -> None:
    """`real.json` holds a text, 20 prompts, and llama.cpp's ids for them with BOS as the model wants it."""
    recorded = json.loads((fixtures_dir / "tokenizer" / "real.json").read_text())
    with open_gguf(real_model(model)) as f:
        tokenizer = load_tokenizer(f)
    for text, ids in zip(recorded["texts"], recorded[name], strict=True):
        assert tokenizer.encode(text, parse_special=False) == ids
        assert tokenizer.decode(ids) == text

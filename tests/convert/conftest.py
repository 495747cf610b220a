"""Writes tiny checkpoints and tokenizers, and runs what they were converted to."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from localllm.engine import Engine, Entry
from localllm.gguf import open_gguf

FIXTURES = Path(__file__).parent.parent / "fixtures"


def _load(stem: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"localllm_test_{stem}", FIXTURES / f"{stem}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def hf_models() -> ModuleType:
    """Tiny checkpoints with recorded outputs (tests/fixtures/hf_models.py)."""
    return _load("hf_models")


@pytest.fixture(scope="session")
def hf_tokenizers() -> ModuleType:
    """Tiny tokenizers (tests/fixtures/hf_tokenizers.py)."""
    return _load("hf_tokenizers")


@pytest.fixture(scope="session")
def n_vocab() -> int:
    """Rows of the embeddings of the tiny checkpoints."""
    return 300


@pytest.fixture
def checkpoint(tmp_path: Path, hf_models: ModuleType, hf_tokenizers: ModuleType, n_vocab: int) -> Callable[..., Path]:
    """checkpoint("llama", dtype="BF16", config={"key": value}) writes a model's folder, with changes of its config."""

    def write(name: str, dtype: str = "F32", config: dict[str, Any] | None = None, folder: str = "model") -> Path:
        path: Path = hf_models.make(name, tmp_path / folder, dtype)
        hf_tokenizers.write(hf_models.models()[name]["tokenizer"], n_vocab, path)
        if config:
            values = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps({**values, **config}))
        return path

    return write


@pytest.fixture(scope="session")
def rows_of() -> Callable[..., np.ndarray]:
    """rows_of(gguf, tokens): logits of every token; with hidden=True the rows that stand for the text."""

    def run(path: Path, tokens: np.ndarray, hidden: bool = False) -> np.ndarray:
        with open_gguf(path) as file:
            engine = Engine.load(file, n_ctx=128, n_threads=1, kv_cache_type="f32", backend="numpy")
            sequence = engine.open_sequence()
            if hidden:
                (rows,) = engine.step_hidden([Entry(sequence, tokens.tolist())])
            else:
                (rows,) = engine.step([Entry(sequence, tokens.tolist(), "all")])
            assert rows is not None
            copied = np.array(rows)
            engine.close()
        return copied

    return run

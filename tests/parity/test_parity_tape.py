"""The compiled tape of every architecture against recorded logits, which stem from float32 arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from localllm.engine import Engine, Entry
from localllm.gguf import open_gguf

MODELS = json.loads((Path(__file__).parent.parent / "fixtures" / "parity" / "models.json").read_text())
KL_LLAMACPP = {"llama-dense.q8_0": 4.0e-4, "qwen3-dense.q8_0": 2.6e-4, "gemma3-dense.q8_0": 3.0e-4}
"""Mean divergence from the same references of llama.cpp's own logits."""


def compiled_logits(path: Path, tokens: np.ndarray) -> np.ndarray:
    with open_gguf(path) as file:
        engine = Engine.load(file, n_ctx=128, n_batch=96, n_slots=1, n_threads=2, backend="tape")
        (logits,) = engine.step([Entry(engine.open_sequence(), tokens.tolist(), "all")])
        assert logits is not None
        copy = logits.copy()
        engine.close()
    return copy


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name in MODELS if name not in KL_LLAMACPP])
def test_float_weights_keep_the_recorded_logits(name: str, parity_models: ModuleType, tmp_path: Path) -> None:
    tokens, expected = parity_models.reference(name)
    logits = compiled_logits(parity_models.make(name, tmp_path / "model.gguf"), tokens)
    assert np.sqrt(np.square(logits - expected).mean()) < 0.003


@pytest.mark.parity
@pytest.mark.parametrize("name", KL_LLAMACPP)
def test_quantised_weights_stray_less_than_llama_cpp_does(name: str, parity_models: ModuleType, tmp_path: Path) -> None:
    tokens, expected = parity_models.reference(name)
    logits = compiled_logits(parity_models.make(name, tmp_path / "model.gguf"), tokens)
    exact = log_softmax(expected)
    kl = (np.exp(exact) * (exact - log_softmax(logits))).sum(axis=1).mean()
    print(f"{name}: mean KL {kl:.2e}, llama.cpp {KL_LLAMACPP[name]:.1e}")
    assert kl < KL_LLAMACPP[name]

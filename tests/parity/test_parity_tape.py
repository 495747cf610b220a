"""The compiled tape of every architecture against recorded logits, which stem from float32 arithmetic.

Those have a cache of float32; ours is of halves, which alone moves logits by up to 7e-3. So float weights are held to
the NumPy backend with the same cache, which with a float32 cache keeps the recorded tolerances (test_parity_twin.py).
"""

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


def logits_of(path: Path, tokens: np.ndarray, backend: str = "tape") -> np.ndarray:
    with open_gguf(path) as file:
        engine = Engine.load(file, n_ctx=128, n_batch=96, n_slots=1, n_threads=2, backend=backend)
        (logits,) = engine.step([Entry(engine.open_sequence(), tokens.tolist(), "all")])
        assert logits is not None
        copy = logits.copy()
        engine.close()
    return copy


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x, dtype=np.float64).mean()))


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name in MODELS if name not in KL_LLAMACPP])
def test_float_weights_keep_the_recorded_logits(name: str, parity_models: ModuleType, tmp_path: Path) -> None:
    tokens, expected = parity_models.reference(name)
    path = parity_models.make(name, tmp_path / "model.gguf")
    compiled, plain = logits_of(path, tokens), logits_of(path, tokens, "numpy")
    # What is left: keys and values on the edge between two halves may round the other way.
    assert rms(compiled - plain) < 3e-4
    assert rms(compiled - expected) < 2e-3


@pytest.mark.parity
@pytest.mark.parametrize("name", KL_LLAMACPP)
def test_quantised_weights_stray_less_than_llama_cpp_does(name: str, parity_models: ModuleType, tmp_path: Path) -> None:
    tokens, expected = parity_models.reference(name)
    logits = logits_of(parity_models.make(name, tmp_path / "model.gguf"), tokens)
    exact = log_softmax(expected)
    kl = (np.exp(exact) * (exact - log_softmax(logits))).sum(axis=1).mean()
    print(f"{name}: mean KL {kl:.2e}, llama.cpp {KL_LLAMACPP[name]:.1e}")
    assert kl < KL_LLAMACPP[name]

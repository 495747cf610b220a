"""The compiled tape of every architecture against recorded logits, which stem from float32 arithmetic.

Those have a cache of float32, with which float weights are held to the recorded tolerances. A cache of halves moves
logits by up to 7e-3, those of fewer bits by more: with these they are held to the NumPy backend with the same cache.
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


def logits_of(path: Path, tokens: np.ndarray, backend: str = "tape", kv: str = "f16") -> np.ndarray:
    with open_gguf(path) as file:
        engine = Engine.load(file, n_ctx=128, n_batch=96, n_slots=1, n_threads=2, backend=backend, kv_cache_type=kv)
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


FLOAT_MODELS = [name for name in MODELS if name not in KL_LLAMACPP]
APART = {"f16": 3e-4, "q8_0": 4e-3, "q4_0": 2e-2}
"""Between the compiled engine and the plain one: what lies on the edge between two codes may round the other way."""


@pytest.mark.parity
@pytest.mark.parametrize("name", FLOAT_MODELS)
def test_float_weights_keep_the_recorded_logits(name: str, parity_models: ModuleType, tmp_path: Path) -> None:
    tokens, expected = parity_models.reference(name)
    logits = logits_of(parity_models.make(name, tmp_path / "model.gguf"), tokens, kv="f32")
    print(f"{name}: {np.abs(logits - expected).max():.1e} of {MODELS[name]['tolerance']:.1e}")
    assert np.abs(logits - expected).max() <= MODELS[name]["tolerance"]


@pytest.mark.parity
@pytest.mark.parametrize("kv", APART)
@pytest.mark.parametrize("name", FLOAT_MODELS)
def test_types_of_the_cache_are_the_twins(name: str, kv: str, parity_models: ModuleType, tmp_path: Path) -> None:
    tokens, expected = parity_models.reference(name)
    path = parity_models.make(name, tmp_path / "model.gguf")
    compiled, plain = logits_of(path, tokens, kv=kv), logits_of(path, tokens, "numpy", kv)
    print(f"{name} {kv}: {rms(compiled - plain):.1e} from the twin, {rms(compiled - expected):.1e} from exact")
    assert rms(compiled - plain) < APART[kv]
    if kv == "f16":
        assert rms(compiled - expected) < 2e-3


@pytest.mark.parity
@pytest.mark.parametrize("name", MODELS)
def test_layer_by_layer_they_are_the_same(name: str, parity_models: ModuleType, tmp_path: Path) -> None:
    tokens, _ = parity_models.reference(name)
    path = parity_models.make(name, tmp_path / "model.gguf")
    at_once = logits_of(path, tokens)
    with open_gguf(path) as file:
        engine = Engine.load(file, n_ctx=128, n_batch=96, n_slots=1, n_threads=2)
        seq = engine.open_sequence()
        assert engine.n_stages == engine.hparams.n_layer
        for stage in range(engine.n_stages):
            (logits,) = engine.step([Entry(seq, tokens.tolist(), "all", n_stages=1)])
            assert (logits is None) == (stage < engine.n_stages - 1)
        assert logits is not None
        np.testing.assert_array_equal(logits, at_once)
        engine.close()


@pytest.mark.parity
@pytest.mark.parametrize("name", KL_LLAMACPP)
def test_quantised_weights_stray_less_than_llama_cpp_does(name: str, parity_models: ModuleType, tmp_path: Path) -> None:
    tokens, expected = parity_models.reference(name)
    logits = logits_of(parity_models.make(name, tmp_path / "model.gguf"), tokens)
    exact = log_softmax(expected)
    kl = (np.exp(exact) * (exact - log_softmax(logits))).sum(axis=1).mean()
    print(f"{name}: mean KL {kl:.2e}, llama.cpp {KL_LLAMACPP[name]:.1e}")
    assert kl < KL_LLAMACPP[name]

"""Encoders against vectors recorded with llama.cpp: of the plain engine and of the compiled one.

llama.cpp looks GELU up in a table of float16, in its tanh form; hence the tolerances.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from localllm.engine import Engine, Entry
from localllm.gguf import open_gguf

MODELS = json.loads((Path(__file__).parent.parent / "fixtures" / "parity" / "encoders.json").read_text())
POOLINGS = {"mean": 1, "cls": 2}


def vector_of(path: Path, tokens: np.ndarray, backend: str, n_threads: int = 2) -> np.ndarray:
    with open_gguf(path) as file:
        engine = Engine.load(file, n_ctx=128, n_threads=n_threads, backend=backend)
        (rows,) = engine.step_hidden([Entry(engine.open_sequence(), tokens.tolist())])
        assert rows is not None and len(rows) == 1
        vector = rows[0].copy()
        engine.close()
    return vector


@pytest.mark.parametrize("backend", ["numpy", pytest.param("tape", marks=pytest.mark.parity)])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", MODELS)
def test_vectors_are_the_recorded_ones(
    name: str, pooling: str, backend: str, parity_models: ModuleType, tmp_path: Path
) -> None:
    assert parity_models.sha256(parity_models.make(name, tmp_path / "same.gguf")) == MODELS[name]["sha256"]
    arch = name.removesuffix("-dense")
    change = {f"{arch}.pooling_type": POOLINGS[pooling]}
    path = parity_models.make(name, tmp_path / "model.gguf", change)
    recorded = parity_models.recorded(name)
    vector = vector_of(path, recorded["tokens"], backend)
    print(f"{name} {pooling} {backend}: {np.abs(vector - recorded[pooling]).max():.1e}")
    assert np.abs(vector - recorded[pooling]).max() <= MODELS[name]["tolerance"]

"""The twin of every architecture against logits recorded with llama.cpp."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kernels_cpu.graph import StepInputs
from kernels_cpu.twin import Twin
from localllm.gguf import open_gguf
from localllm.models import ARCHITECTURES, build

MODELS = json.loads((Path(__file__).parent.parent / "fixtures" / "parity" / "models.json").read_text())


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_recorded_ones(name: str, parity_models: ModuleType, tmp_path: Path) -> None:
    path = parity_models.make(name, tmp_path / "model.gguf")
    assert parity_models.sha256(path) == MODELS[name]["sha256"]
    tokens, expected = parity_models.reference(name)
    rows = np.arange(len(tokens), dtype=np.int32)
    with open_gguf(path) as file:
        twin = Twin(build(file).graph, n_ctx=len(tokens))
        logits = twin.run(StepInputs(tokens, rows, 0 * rows, np.zeros((1, 1), np.int32), rows))
    assert np.abs(logits - expected).max() <= MODELS[name]["tolerance"]


def test_every_architecture_has_a_model(parity_models: ModuleType) -> None:
    names = [re.split(r"-dense", name)[0] for name in parity_models.MODELS]
    assert set(names) == set(ARCHITECTURES)

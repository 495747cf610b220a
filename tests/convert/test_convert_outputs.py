"""What checkpoints become against `transformers`: logits, vectors and scores of tiny models of every class."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from localllm.convert import convert_model

RECORDED = json.loads((Path(__file__).parent.parent / "fixtures" / "convert" / "models.json").read_text())
TOLERANCE = 3e-6
"""Of the largest output: what the order of sums in float32 leaves."""


@pytest.mark.parametrize("name", RECORDED)
def test_outputs_are_those_of_transformers(
    name: str,
    checkpoint: Callable[..., Path],
    hf_models: ModuleType,
    rows_of: Callable[..., np.ndarray],
    tmp_path: Path,
) -> None:
    convert_model(checkpoint(name), tmp_path / "model.gguf", dtype="F32")
    tokens, expected = hf_models.recorded(name)
    is_logits = RECORDED[name]["output"] == "logits"
    rows = rows_of(tmp_path / "model.gguf", tokens, hidden=not is_logits and name != "qwen3-ranker")
    rows = rows[-len(expected) :] if is_logits else rows[-1]
    error, largest = np.abs(rows - expected).max(), max(np.abs(expected).max(), 1.0)
    print(f"{name}: {error:.1e} of {largest:.1f}")
    assert error <= TOLERANCE * largest

"""LoRA adapters against llama.cpp's recorded logits, on both backends."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from localllm.engine import Engine, Entry
from localllm.gguf import open_gguf

TOLERANCES = {"llama-dense": 5e-4, "qwen2-dense": 5e-4, "gemma3-dense": 5e-3}
"""Those of the models without adapters."""


@pytest.mark.parametrize("backend", ["numpy", "tape"])
@pytest.mark.parametrize("name", TOLERANCES)
def test_logits_with_one_and_with_two_adapters(
    name: str, backend: str, parity_models: ModuleType, lora_files: ModuleType, tmp_path: Path
) -> None:
    path = parity_models.make(name, tmp_path / "model.gguf")
    recipes = (lora_files.FIRST, lora_files.SECOND)
    paths = [lora_files.adapter_for(path, tmp_path / f"{recipe.name}.gguf", recipe) for recipe in recipes]
    (tokens, plain), expected = parity_models.reference(name), lora_files.reference(name)
    with open_gguf(path) as file:
        sizes = {"n_ctx": 96, "n_batch": 96, "n_slots": 3, "n_threads": 2}
        engine = Engine.load(file, **sizes, backend=backend, kv_cache_type="f32")
        first, second = (engine.load_adapter(adapter)[0] for adapter in paths)
        both = ((first, 0.75), (second, -1.5))
        for adapters, wanted in (((), plain), (((first, 1.0),), expected["first"]), (both, expected["both"])):
            seq = engine.open_sequence()
            (logits,) = engine.step([Entry(seq, tokens.tolist(), "all", adapters)])
            assert logits is not None
            worst = float(np.abs(logits - wanted).max())
            print(f"{name} {backend} {len(adapters)}: {worst:.1e}")
            assert worst <= TOLERANCES[name]
            seq.close()
        engine.close()

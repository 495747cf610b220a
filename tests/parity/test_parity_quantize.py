"""Real models quantised here and by llama-quantize: the same types, errors and divergence, and each runs the other's.

LOCALLLM_TEST_LLAMA_CPP names a folder with llama.cpp's `llama-quantize` and `llama-bench`. The base is the catalog's
model, dequantised to F16.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest

from kernels_cpu.quants.reference import DEQUANTISERS, dequantise_rows
from localllm.engine import Engine, Entry
from localllm.gguf import TensorInfo, open_gguf
from localllm.quantize import PRESETS, quantize

LLAMA_CPP = os.environ.get("LOCALLLM_TEST_LLAMA_CPP")
pytestmark = [
    *(pytest.mark.parity, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)),
    pytest.mark.skipif(not LLAMA_CPP, reason="LOCALLLM_TEST_LLAMA_CPP does not name a folder with llama-quantize"),
]

# Gemma's `ffn_down` and `attn_output` have rows of whole blocks of 256; SmolLM2's have not, and fall back.
WITHOUT_IMATRIX = [name for name, preset in PRESETS.items() if not preset.needs_imatrix and preset.base.block_size > 1]
CASES = [("gemma3:270m", name) for name in WITHOUT_IMATRIX] + [("smollm2:135m", n) for n in ("Q4_0", "Q5_1", "Q4_K_M")]
N_TOKENS = 200
MOST = 1.02


@pytest.fixture(scope="module")
def f16_base(real_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The F16 file of a model, made once."""
    folder = tmp_path_factory.mktemp("base")

    def get(name: str) -> Path:
        path = folder / f"{name.replace(':', '-')}.gguf"
        if not path.exists():
            quantize([real_model(name)], path, PRESETS["F16"], allow_requantize=True)
        return path

    return get


def floats(tensor: TensorInfo) -> np.ndarray:
    rows = tensor.data.reshape(-1, tensor.shape[0] // tensor.type.block_size * tensor.type.type_size)
    if int(tensor.type) in DEQUANTISERS:
        return dequantise_rows(rows, int(tensor.type))
    return np.asarray(gguf_package.quants.dequantize(rows, gguf_package.GGMLQuantizationType(int(tensor.type))))


def rmse(path: Path, base: Path) -> float:
    """Root of the mean squared error over all weights that were quantised."""
    total, n = 0.0, 0
    with open_gguf(path) as made, open_gguf(base) as exact:
        for tensor in made.tensors.values():
            if tensor.type.block_size > 1:
                error = floats(tensor) - floats(exact.tensor(tensor.name))
                total, n = total + float(np.square(error, dtype=np.float64).sum()), n + error.size
    return float(np.sqrt(total / n))


def log_probabilities(path: Path, ids: list[int]) -> np.ndarray:
    """Of the next token after each of `ids`, by our engine: float64 [n, n_vocab]."""
    with open_gguf(path) as gguf:
        engine = Engine.load(gguf, n_ctx=1024, n_slots=1)
        seq, parts = engine.open_sequence(), []
        for i in range(0, len(ids), 100):
            (found,) = engine.step([Entry(seq, ids[i : i + 100], "all")])
            assert found is not None
            parts.append(found.astype(np.float64))
        engine.close()
    x = np.concatenate(parts)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def divergence(exact: np.ndarray, found: np.ndarray) -> float:
    """Mean KL(exact || found), nats."""
    return float((np.exp(exact) * (exact - found)).sum(axis=1).mean())


@pytest.fixture(scope="module")
def exact(f16_base: Callable[[str], Path], fixtures_dir: Path) -> Callable[[str], tuple[list[int], np.ndarray]]:
    """Tokens of a text and what the F16 base says to them, kept of one model."""
    kept: dict[str, tuple[list[int], np.ndarray]] = {}

    def get(name: str) -> tuple[list[int], np.ndarray]:
        if name not in kept:
            kept.clear()
            with np.load(fixtures_dir / "real" / f"{name.replace(':', '-')}.npz") as reference:
                ids = reference["tokens"].tolist()[:N_TOKENS]
            kept[name] = ids, log_probabilities(f16_base(name), ids)
        return kept[name]

    return get


def run(program: str, *arguments: str) -> None:
    """Run one of llama.cpp's programs. Its output is shown where it fails."""
    done = subprocess.run([str(Path(LLAMA_CPP or "") / program), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in rows of whole blocks of 256, so that every type is used as it is; it has a vocabulary."""
    folder, script = tmp_path_factory.mktemp("random"), Path(__file__).parents[2] / "scripts" / "make-bench-model"
    sizes = {"layers": 4, "embd": 256, "ff": 512, "heads": 4, "heads-kv": 2, "vocab": 512}
    options = [f"--{key}={value}" for key, value in sizes.items()]
    subprocess.run([sys.executable, str(script), str(folder), "--name=random", *options], check=True)
    return folder / "random-F16.gguf"


@pytest.mark.parametrize("preset", [name for name, preset in PRESETS.items() if not preset.needs_imatrix])
def test_every_preset_gives_llamacpps_file_and_runs_in_it(preset: str, random_model: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    quantize([random_model], ours, PRESETS[preset])
    run("llama-quantize", str(random_model), str(theirs), preset)
    with open_gguf(ours) as a, open_gguf(theirs) as b:
        made, want = ({t.name: (t.type, t.data.tobytes()) for t in gguf.tensors.values()} for gguf in (a, b))
        assert {key: a.metadata[key] for key in ("general.file_type", "general.quantization_version")} == {
            key: b.metadata[key] for key in ("general.file_type", "general.quantization_version")
        }
    assert made == want
    run("llama-bench", "-m", str(ours), "-p", "16", "-n", "4", "-r", "1")


@pytest.mark.parametrize(("model", "preset"), CASES)
def test_as_good_as_llamacpps_and_each_runs_the_others(
    model: str,
    preset: str,
    f16_base: Callable[[str], Path],
    exact: Callable[[str], tuple[list[int], np.ndarray]],
    tmp_path: Path,
) -> None:
    base, ours, theirs = f16_base(model), tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    quantize([base], ours, PRESETS[preset])
    run("llama-quantize", str(base), str(theirs), preset)
    with open_gguf(ours) as a, open_gguf(theirs) as b:
        assert {t.name: t.type for t in a.tensors.values()} == {t.name: t.type for t in b.tensors.values()}
        n_equal = sum(np.array_equal(t.data, b.tensor(t.name).data) for t in a.tensors.values())
        n_tensors = len(a.tensors)
    ids, want = exact(model)
    errors = [rmse(path, base) for path in (ours, theirs)]
    kls = [divergence(want, log_probabilities(path, ids)) for path in (ours, theirs)]
    print(f"{model} {preset}: RMSE {errors[0]:.3e} ({errors[0] / errors[1]:.4f} of llama-quantize's), ", end="")
    print(f"KL {kls[0]:.3e} ({kls[0] / kls[1]:.4f}), {n_equal} of {n_tensors} tensors have the same bytes")
    run("llama-bench", "-m", str(ours), "-p", "16", "-n", "4", "-r", "1")
    assert errors[0] <= MOST * errors[1]
    assert kls[0] <= MOST * kls[1]

"""What stands for a text: kinds of pooling, classifiers, and what of it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kernels_cpu.graph import StepInputs
from kernels_cpu.twin import Twin
from localllm.errors import GGUFError, UnsupportedModelError
from localllm.gguf import GGMLType, GGUFFile, open_gguf
from localllm.models import build
from localllm.runner.embed import score


@dataclass
class Tensor:
    """A tensor that is in no file."""

    array: np.ndarray
    type: GGMLType = GGMLType.F32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[::-1]

    @property
    def data(self) -> np.ndarray:
        return self.array.reshape(-1).view(np.uint8)


@pytest.fixture
def qwen3(parity_models: ModuleType, tmp_path: Path) -> Any:
    """qwen3(pooling_type): the file of a tiny Qwen 3."""

    def make(pooling_type: int) -> GGUFFile:
        change = {"qwen3.pooling_type": pooling_type}
        return open_gguf(parity_models.make("qwen3-dense", tmp_path / "model.gguf", change))

    return make


def last_row_of(tokens: list[int]) -> StepInputs:
    n = len(tokens)
    columns = np.array([tokens, range(n), [0] * n], np.int32)
    return StepInputs(*columns, np.zeros((1, 1), np.int32), np.array([n - 1], np.int32))


def test_a_causal_ranker_scores_its_last_row(qwen3: Any) -> None:
    with qwen3(3) as file:
        model = build(file)
        hidden = Twin(model.graph, 8).run_hidden(last_row_of([1, 2, 3]))
        assert model.pooling == "last" and not model.graph.is_bidirectional
        n_embd = hidden.shape[1]
    weight = np.random.default_rng(0).normal(size=(2, n_embd)).astype(np.float32)
    with qwen3(4) as file:
        file.tensors["cls.output.weight"] = Tensor(weight)
        model = build(file)
        labels = Twin(model.graph, 8).run(last_row_of([1, 2, 3]))
    assert model.pooling == "rank"
    np.testing.assert_allclose(labels, hidden @ weight.T, rtol=1e-4, atol=1e-4)
    shares = np.exp(labels[0].astype(np.float64))
    assert score(labels[0], is_encoder=False) == pytest.approx(shares[0] / shares.sum(), rel=1e-6)
    assert score(labels[0], is_encoder=True) == float(labels[0, 0])


def test_one_label_is_one_row_whatever_its_dimensions(qwen3: Any) -> None:
    with qwen3(4) as file:
        assert len(file.tensors["cls.output.weight"].shape) == 1
        assert build(file).graph.n_vocab == 1
        file.tensors["cls.output.weight"] = Tensor(np.ones((1, 256), np.float32))
        assert build(file).graph.n_vocab == 1


@pytest.mark.parametrize("unsaid", [0, 2**32 - 1])
def test_a_chat_model_has_its_last_row(qwen3: Any, unsaid: int) -> None:
    with qwen3(unsaid) as file:
        assert build(file).pooling == "last"


def test_what_is_refused(qwen3: Any) -> None:
    with qwen3(7) as file, pytest.raises(GGUFError, match=r"pooling_type`: expected an integer in 0\.\.4, got 7"):
        build(file)
    with qwen3(4) as file:
        del file.tensors["cls.output.weight"]
        with pytest.raises(GGUFError, match=r"missing tensor `cls\.output\.weight`"):
            build(file)
    with qwen3(1) as file:
        file.metadata._values["qwen3.attention.causal"] = False
        with pytest.raises(UnsupportedModelError, match="attention that is not causal"):
            build(file)

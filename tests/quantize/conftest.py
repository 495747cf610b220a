"""A small model to quantise: every kind of tensor that the choice of types knows, two layers, rows of 256."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localllm.gguf import GGMLType, ValueType
from localllm.gguf.writer import TensorPlan, Typed, Writer

N_EXPERTS = 4
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (64, 256),
    "output_norm.weight": (256,),
    "output.weight": (64, 256),
    **{
        f"blk.{i}.{stem}.weight": shape
        for i in range(2)
        for stem, shape in {
            "attn_norm": (256,),
            "attn_q": (256, 256),
            "attn_k": (128, 256),
            "attn_v": (128, 256),
            "attn_output": (256, 256),
            "ffn_gate_inp": (N_EXPERTS, 256),
            **{f"ffn_{part}_exps": (N_EXPERTS, 32, 256) for part in ("gate", "up", "down")},
        }.items()
    },
}
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "small",
    "general.file_type": Typed(ValueType.INT32, 1),
    "llama.block_count": 2,
    "llama.attention.head_count": Typed(ValueType.UINT64, 8),
    "llama.attention.head_count_kv": [2, 2],
    "llama.expert_count": N_EXPERTS,
    "llama.rope.freq_base": Typed(ValueType.FLOAT64, 10000.1),
    "tokenizer.ggml.tokens": ["a", "b", "ü"],
    "tokenizer.ggml.scores": Typed(ValueType.FLOAT32, []),
    "made.for.tests": True,
}
_DTYPES = {GGMLType.F32: np.float32, GGMLType.F16: np.float16}


def weights(name: str) -> np.ndarray:
    """Float32 that F16 and BF16 hold exactly: heavy tails, as weights have them."""
    rng = np.random.default_rng(sum(name.encode()))
    values = rng.standard_t(5, SHAPES[name]).astype(np.float32) / 16
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32).clip(-8, 8) + np.float32(0)


def as_bytes(values: np.ndarray, kind: GGMLType) -> np.ndarray:
    """The bytes of a tensor of floats of any of the three types."""
    if kind is GGMLType.BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(_DTYPES[kind]).view(np.uint8)


def write_model(
    path: Path, kind: GGMLType = GGMLType.F16, *, names: list[str] | None = None, metadata: dict[str, Any] | None = None
) -> Path:
    """The small model, or some of its tensors, with matrices of `kind` and vectors of F32."""
    plans = [
        TensorPlan(name, SHAPES[name], kind if len(SHAPES[name]) > 1 else GGMLType.F32) for name in names or SHAPES
    ]
    with Writer(path, METADATA if metadata is None else metadata, plans) as writer:
        for plan in plans:
            writer.write(as_bytes(weights(plan.name), GGMLType(plan.type)))
        writer.finish()
    return path


@pytest.fixture(scope="session")
def small_model() -> Callable[..., Path]:
    """write_model"""
    return write_model


@pytest.fixture(scope="session")
def small_weights() -> Callable[[str], np.ndarray]:
    """weights"""
    return weights


@pytest.fixture(scope="session")
def f16_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model as F16."""
    return write_model(tmp_path_factory.mktemp("small") / "f16.gguf")

"""A small model to quantise: every kind of tensor that the choice of types knows, two layers, rows of 256.

Its bytes are the same everywhere: what llama-quantize made of it is recorded.
"""

from __future__ import annotations

import math
import struct
import zlib
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
    "general.file_type": 1,
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 256,
    "llama.expert_used_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.attention.head_count": 8,
    "made.for.long": Typed(ValueType.UINT64, 1 << 40),
    "llama.attention.head_count_kv": [2, 2],
    "llama.expert_count": N_EXPERTS,
    "made.for.double": Typed(ValueType.FLOAT64, 10000.1),
    "tokenizer.ggml.tokens": ["a", "b", "ü"],
    "tokenizer.ggml.scores": Typed(ValueType.FLOAT32, []),
    "made.for.truth": True,
}
_DTYPES = {GGMLType.F32: np.float32, GGMLType.F16: np.float16}


def _normal(name: str, n: int) -> np.ndarray:
    """Float64 of mean 0 and about variance 1, the same everywhere: sums of the four 16-bit parts of a raw number."""
    raw = np.random.PCG64((1, zlib.crc32(name.encode()))).random_raw(n)
    parts = [((raw >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48)]
    return (sum(parts) - 2 * 65535).astype(np.float64) / 37837


def weights(name: str) -> np.ndarray:
    """Float32 that F16 and BF16 hold exactly: multiples of 1/1024 up to 1/4, with heavy tails, as weights have them."""
    z = _normal(name, math.prod(SHAPES[name]))
    return (np.rint(z * (24 + 12 * z * z)).clip(-255, 255) / 1024).astype(np.float32).reshape(SHAPES[name])


def importance(name: str) -> np.ndarray:
    """Weights of a matrix's columns, of each in a stack: float32 [n_matrices, 256], over four decimal orders."""
    n_matrices = SHAPES[name][0] if len(SHAPES[name]) > 2 else 1
    return np.square(np.square(_normal(name, n_matrices * 256))).astype(np.float32).reshape(n_matrices, 256)


def write_imatrix(path: Path, *, skip: str = " ") -> Path:
    """The importance of all matrices whose names do not hold `skip`, in the `.dat` form, of 42 chunks of a `text`."""
    names = [name for name, shape in SHAPES.items() if len(shape) > 1 and skip not in name]
    parts = [struct.pack("<i", len(names))]
    for name in names:
        values = importance(name)
        parts += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", 1, values.size), values.tobytes()]
    path.write_bytes(b"".join(parts) + struct.pack("<ii", 42, 4) + b"text")
    return path


def write_gguf_imatrix(path: Path) -> Path:
    """Sums and counts as GGUF: the importance times odd counts, and of each stack one matrix that was never used."""
    arrays = {}
    for name in (name for name, shape in SHAPES.items() if len(shape) > 1):
        counts = np.array([[3 + 2 * i] for i in range(len(importance(name)))], np.float32)
        counts[1:2] = 0
        arrays |= {f"{name}.in_sum2": importance(name) * counts, f"{name}.counts": counts}
    keys: dict[str, Any] = {"general.type": "imatrix", "imatrix.datasets": ["text", "more"]}
    keys |= {"imatrix.chunk_count": 42, "imatrix.chunk_size": 512}
    with Writer(path, keys, [TensorPlan(name, x.shape, GGMLType.F32) for name, x in arrays.items()]) as writer:
        for x in arrays.values():
            writer.write(x)
        writer.finish()
    return path


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
def small_importance() -> Callable[[str], np.ndarray]:
    """importance"""
    return importance


@pytest.fixture(scope="session")
def small_imatrix() -> Callable[..., Path]:
    """write_imatrix"""
    return write_imatrix


@pytest.fixture(scope="session")
def small_gguf_imatrix() -> Callable[[Path], Path]:
    """write_gguf_imatrix"""
    return write_gguf_imatrix


@pytest.fixture(scope="session")
def f16_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model as F16."""
    return write_model(tmp_path_factory.mktemp("small") / "f16.gguf")

"""What a model is thought to take, by its header alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernels_cpu.kv_rounding import KV_ROUNDINGS
from kernels_cpu.ops.kv import KVLayout
from localllm import env
from localllm.messages import LoadRequest, ModelSpec
from localllm.scheduler.memory import KV_BYTES_PER_VALUE, MemoryEstimate, estimate


def want(path: Path) -> LoadRequest:
    return LoadRequest(ModelSpec("m", "digest", [str(path)], "digest"))


def header(tiny_models: ModuleType, path: Path, n_head_kv: tuple[int, Any]) -> Path:
    numbers = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "context_length": 128}
    kvs = [("general.architecture", tiny_models.STRING, "llama")]
    kvs += [(f"llama.{key}", tiny_models.U32, value) for key, value in numbers.items()]
    tiny_models.write_gguf(path, [*kvs, ("llama.attention.head_count_kv", *n_head_kv)], [])
    return path


def test_sizes_come_from_the_header(tiny_models: ModuleType, tmp_path: Path) -> None:
    path = header(tiny_models, tmp_path / "m.gguf", (tiny_models.U32, 2))
    found = estimate(want(path))
    assert (found.weights_bytes, found.n_ctx_train) == (path.stat().st_size, 128)
    assert found.kv_bytes_per_token == 2 * 2 * (16 + 16) * 2
    assert found.total_bytes(300) - found.total_bytes(200) == 100 * found.kv_bytes_per_token


def test_types_of_the_cache_are_the_engines(tiny_models: ModuleType, tmp_path: Path) -> None:
    assert set(KV_BYTES_PER_VALUE) == set(env.KV_CACHE_TYPES) == set(KV_ROUNDINGS)
    path = header(tiny_models, tmp_path / "m.gguf", (tiny_models.U32, 2))
    for kv_type in env.KV_CACHE_TYPES:
        page_bytes = KVLayout(kv_type, 2, 64).page_bytes
        assert 32 * 2 * 2 * 64 * KV_BYTES_PER_VALUE[kv_type] == page_bytes
        assert estimate(replace(want(path), kv_cache_type=kv_type)).kv_bytes_per_token * 32 == page_bytes / 2


def test_heads_may_be_listed_for_each_layer(tiny_models: ModuleType, tmp_path: Path) -> None:
    path = header(tiny_models, tmp_path / "m.gguf", (tiny_models.ARRAY, (tiny_models.U32, [1, 3])))
    assert estimate(want(path)).kv_bytes_per_token == (1 + 3) * (16 + 16) * 2


@pytest.mark.parametrize("value", [("STRING", "x"), ("F32", 2.0), ("ARRAY", ("STRING", ["x", "y"]))])
def test_what_are_no_numbers_of_heads_is_for_the_runner_to_refuse(
    tiny_models: ModuleType, tmp_path: Path, value: tuple[str, Any]
) -> None:
    kind, content = value
    if kind == "ARRAY":
        content = (getattr(tiny_models, content[0]), content[1])
    path = header(tiny_models, tmp_path / "m.gguf", (getattr(tiny_models, kind), content))
    assert estimate(want(path)).kv_bytes_per_token > 0


@pytest.mark.parametrize(
    ("num_ctx", "num_parallel", "free", "expected"),
    [
        *((1000, 16, 10**9, 16_000), (1000, 1, 10**9, 1000), (9999, 2, 10**9, 8192)),
        *((1000, 16, 26_000, 1500), (1000, 16, 3000, 1000), (1000, 16, 0, 1000)),
    ],
)
def test_the_kv_cache_has_a_whole_context_and_what_a_share_of_memory_gives(
    num_ctx: int, num_parallel: int, free: int, expected: int
) -> None:
    """1000 of weights, 1000 of workspace, 4 a token; trained for 4096."""
    assert MemoryEstimate(1000, 4.0, 1000, 4096).num_kv(num_ctx, num_parallel, free) == expected


def test_without_keys_and_values_there_is_nothing_to_share() -> None:
    assert MemoryEstimate(1000, 0.0, 1000, 512).num_kv(512, 16, 10**9) == 512

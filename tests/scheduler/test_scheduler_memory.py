"""What a model is thought to take, by its header alone, beside what the engine takes."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kernels_cpu.kv_rounding import KV_ROUNDINGS
from kernels_cpu.ops.kv import KVLayout
from kernels_cpu.quants.table import QUANT_TYPES
from kernels_cpu.tape import Lowering, TapeSizes
from kernels_cpu.weights import PackedWeights, pack_weights
from localllm import env
from localllm.engine.engine import SLOTS_WITHOUT_CACHE
from localllm.gguf import open_gguf
from localllm.messages import LoadRequest, ModelSpec
from localllm.models import ARCHITECTURES, build
from localllm.runner.model import DEFAULT_N_BATCH, N_SPARE_SEQUENCES, N_VECTOR_SEQUENCES
from localllm.scheduler import memory
from localllm.scheduler.memory import ENCODERS, KV_BYTES_PER_VALUE, MemoryEstimate, estimate
from localllm.scheduler.packed_sizes import GROUP_ROWS, PACKED_BLOCKS

DECODERS = ("llama-dense.q8_0", "qwen3-dense.q8_0", "gemma3-dense.q8_0", "llama-dense", "gemma2-dense")


def want(path: Path, **settings: Any) -> LoadRequest:
    return LoadRequest(ModelSpec("m", "digest", [str(path)], "digest"), **settings)


def header(tiny_models: ModuleType, path: Path, n_head_kv: tuple[int, Any]) -> Path:
    numbers = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "context_length": 128}
    kvs = [("general.architecture", tiny_models.STRING, "llama")]
    kvs += [(f"llama.{key}", tiny_models.U32, value) for key, value in numbers.items()]
    tiny_models.write_gguf(path, [*kvs, ("llama.attention.head_count_kv", *n_head_kv)], [])
    return path


def test_the_tables_are_the_engines() -> None:
    packed = {int(kind): blocks for kind, blocks in PACKED_BLOCKS.items()}
    assert packed == {kind: (q.format.block_columns, q.format.packed_block_bytes) for kind, q in QUANT_TYPES.items()}
    assert GROUP_ROWS == 16 and set(ARCHITECTURES) > ENCODERS
    ours = (memory.DEFAULT_NUM_BATCH, memory.N_SPARE_SEQUENCES, memory.N_VECTOR_SEQUENCES, memory.N_ENCODER_SEQUENCES)
    assert ours == (DEFAULT_N_BATCH, N_SPARE_SEQUENCES, N_VECTOR_SEQUENCES, SLOTS_WITHOUT_CACHE)


@pytest.mark.parametrize("name", DECODERS)
def test_an_estimate_is_near_to_what_the_engine_takes(name: str, parity_models: ModuleType, tmp_path: Path) -> None:
    arch = name.partition("-")[0]
    path = parity_models.make(name, tmp_path / "model.gguf", {f"{arch}.context_length": 8192})
    found = estimate(want(path, num_parallel=16, num_thread=1, num_batch=4096))
    for num_ctx, num_kv in ((1024, 1024), (8192, 4 * 8192)):
        sizes = TapeSizes(num_ctx, 4096, 16 + N_SPARE_SEQUENCES, num_kv // 32)
        with open_gguf(path) as gguf:
            graph = build(gguf).graph
            lowering = Lowering(graph, PackedWeights(np.zeros(1, np.uint8), defaultdict(int)), sizes, 1)
            lowering.run()
            weights_bytes = pack_weights(graph.weights(), None, lambda done, total: None).nbytes
        assert found.weights_bytes == pytest.approx(weights_bytes, rel=0.1)
        assert num_kv * found.kv_bytes_per_token == pytest.approx(lowering.kv_bytes, rel=0.01)
        total = found.total_bytes(num_ctx, num_kv) - found.process_bytes
        assert total == pytest.approx(weights_bytes + lowering.kv_bytes + lowering.workspace_bytes, rel=0.1)


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_encoders_keep_nothing(name: str, tiny_models: ModuleType, tmp_path: Path) -> None:
    kvs = [("general.architecture", tiny_models.STRING, name)]
    kvs += [(f"{name}.{key}", tiny_models.U32, 64) for key in ("block_count", "embedding_length", "context_length")]
    tiny_models.write_gguf(tmp_path / "m.gguf", kvs, [])
    found = estimate(want(tmp_path / "m.gguf"))
    assert found.kv_bytes_per_token == 0 and found.workspace_bytes_per_token > 0


def test_a_batch_has_no_more_rows_than_the_context(parity_models: ModuleType, tmp_path: Path) -> None:
    path = parity_models.make("llama-dense", tmp_path / "model.gguf")
    sizes = [estimate(want(path, num_ctx=64, num_batch=n)).workspace_bytes for n in (64, 10**9)]
    assert sizes[0] == sizes[1] < estimate(want(path, num_batch=10**9)).workspace_bytes < 10**9


def test_there_are_no_more_threads_than_processors(parity_models: ModuleType, tmp_path: Path) -> None:
    path = parity_models.make("llama-dense", tmp_path / "model.gguf")
    sizes = [estimate(want(path, num_thread=n)).workspace_bytes for n in (os.cpu_count() or 1, 10**6)]
    assert sizes[0] == sizes[1]


def test_a_model_with_one_that_drafts_for_it_takes_both() -> None:
    both = MemoryEstimate(1000, 4.0, 100, 4096, 1.0, 50).beside(MemoryEstimate(10, 0.5, 1, 512, 0.25, 50))
    assert both == MemoryEstimate(1010, 4.5, 101, 4096, 1.25, 50)


def test_sizes_come_from_the_header(tiny_models: ModuleType, tmp_path: Path) -> None:
    path = header(tiny_models, tmp_path / "m.gguf", (tiny_models.U32, 2))
    found = estimate(want(path))
    assert (found.weights_bytes, found.n_ctx_train) == (0, 128)
    assert found.kv_bytes_per_token == 2 * 2 * (16 + 16) * 2
    assert found.total_bytes(64, 300) - found.total_bytes(64, 200) == 100 * found.kv_bytes_per_token


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

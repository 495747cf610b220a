"""Adapters: the base plus what was converted is what the checkpoint plus its adapter is converted to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from localllm.convert import ConvertError, convert_adapter, convert_model
from localllm.engine import Engine, Entry
from localllm.gguf import open_gguf
from localllm.gguf.header import read_metadata

RANK, ALPHA = 4, 6.0
Tensors = dict[str, np.ndarray]


def adapter_of(tensors: Tensors, folder: Path, prefix: str = "base_model.model.", **config: Any) -> Tensors:
    """Write an adapter of all matrices in the layers; gives the deltas by the names of their tensors, unscaled."""
    rng = np.random.default_rng(0)
    saved, deltas = {}, {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or "_proj." not in name or "layers." not in name or "vision" in name:
            continue
        a = rng.standard_normal((RANK, tensor.shape[1])).astype(np.float32)
        b = rng.standard_normal((tensor.shape[0], RANK)).astype(np.float32)
        stem = prefix + name.removesuffix(".weight")
        saved |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
        deltas[name] = b @ a
    folder.mkdir(exist_ok=True)
    save_file(saved, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return deltas


def values(path: Path) -> Tensors:
    with open_gguf(path) as file:
        return {name: info.data.view("<f4").reshape(info.shape[::-1]).copy() for name, info in file.tensors.items()}


@pytest.mark.parametrize("name", ["llama", "mistral", "phi3", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3-vision"])
def test_base_and_adapter_are_the_merged_model(
    name: str, checkpoint: Callable[..., Path], hf_models: ModuleType, tmp_path: Path
) -> None:
    folder = checkpoint(name)
    tensors = load_file(folder / "model.safetensors")
    deltas = adapter_of(tensors, tmp_path / "adapter")
    convert_model(folder, tmp_path / "base.gguf", dtype="F32")
    merged = {key: tensor + ALPHA / RANK * deltas[key] if key in deltas else tensor for key, tensor in tensors.items()}
    hf_models.write_safetensors(folder / "model.safetensors", merged)
    convert_model(folder, tmp_path / "merged.gguf", dtype="F32")
    base = read_metadata(tmp_path / "base.gguf")
    convert_adapter(tmp_path / "adapter", tmp_path / "adapter.gguf", base=base)

    found, expected, adapter = (values(tmp_path / f"{file}.gguf") for file in ("base", "merged", "adapter"))
    changed = {key.rpartition(".")[0] for key in adapter}
    assert {key for key in expected if not np.array_equal(expected[key], found[key])} == changed
    for key in changed:
        delta = ALPHA / RANK * adapter[f"{key}.lora_b"] @ adapter[f"{key}.lora_a"]
        assert np.allclose(found[key] + delta, expected[key], atol=2e-5), key
    metadata = read_metadata(tmp_path / "adapter.gguf")
    assert (metadata["general.type"], metadata["adapter.type"]) == ("adapter", "lora")
    assert metadata["general.architecture"] == base["general.architecture"]
    assert metadata["adapter.lora.alpha"] == ALPHA


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_base_and_adapter_answer_as_the_merged_model(
    name: str, checkpoint: Callable[..., Path], hf_models: ModuleType, tmp_path: Path
) -> None:
    """The adapter applied at run time, to the weights of the base."""
    folder = checkpoint(name)
    tensors = load_file(folder / "model.safetensors")
    deltas = adapter_of(tensors, tmp_path / "adapter", lora_alpha=0.1)
    convert_model(folder, tmp_path / "base.gguf", dtype="F32")
    merged = {key: tensor + 0.1 / RANK * deltas[key] if key in deltas else tensor for key, tensor in tensors.items()}
    hf_models.write_safetensors(folder / "model.safetensors", merged)
    convert_model(folder, tmp_path / "merged.gguf", dtype="F32")
    convert_adapter(tmp_path / "adapter", tmp_path / "adapter.gguf", base=read_metadata(tmp_path / "base.gguf"))

    def logits(file: str, adapter: Path | None = None) -> np.ndarray:
        with open_gguf(tmp_path / file) as gguf:
            engine = Engine.load(gguf, n_ctx=32, n_slots=1, backend="numpy", kv_cache_type="f32")
            adapters = ((engine.load_adapter(adapter)[0], 1.0),) if adapter else ()
            (rows,) = engine.step([Entry(engine.open_sequence(), list(range(20, 40)), "all", adapters)])
            assert rows is not None
            return rows.copy()

    base, wanted = logits("base.gguf"), logits("merged.gguf")
    np.testing.assert_allclose(logits("base.gguf", tmp_path / "adapter.gguf"), wanted, atol=1e-3)
    assert np.abs(wanted - base).max() > 0.05


@pytest.fixture
def base() -> dict[str, Any]:
    keys = {"block_count": 2, "embedding_length": 64, "feed_forward_length": 96}
    heads = {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16}
    return {"general.architecture": "qwen2", **{f"qwen2.{key}": value for key, value in {**keys, **heads}.items()}}


@pytest.fixture
def qwen(checkpoint: Callable[..., Path]) -> Tensors:
    return load_file(checkpoint("qwen2") / "model.safetensors")


def test_embeddings(qwen: Tensors, base: dict[str, Any], tmp_path: Path) -> None:
    adapter_of(qwen, tmp_path / "a")
    path = tmp_path / "a" / "adapter_model.safetensors"
    a, b = np.random.default_rng(0).standard_normal((2, RANK, 300)).astype(np.float32)
    b = b[:, :64].T.copy()
    stem = "base_model.model.model.embed_tokens.lora_embedding"
    save_file({**load_file(path), f"{stem}_A": a, f"{stem}_B": b}, path)
    convert_adapter(tmp_path / "a", tmp_path / "a.gguf", base=base)
    found = values(tmp_path / "a.gguf")
    assert np.array_equal(found["token_embd.weight.lora_a"], a.T)
    assert np.array_equal(found["token_embd.weight.lora_b"], b)


def test_rank_stabilised(qwen: Tensors, base: dict[str, Any], tmp_path: Path) -> None:
    adapter_of(qwen, tmp_path / "a", use_rslora=True)
    convert_adapter(tmp_path / "a", tmp_path / "a.gguf", base=base)
    alpha = read_metadata(tmp_path / "a.gguf")["adapter.lora.alpha"]
    assert alpha / RANK == pytest.approx(ALPHA / math.sqrt(RANK))


def test_modules_with_an_alpha_of_their_own(qwen: Tensors, base: dict[str, Any], tmp_path: Path) -> None:
    adapter_of(qwen, tmp_path / "a")
    convert_adapter(tmp_path / "a", tmp_path / "plain.gguf", base=base)
    adapter_of(qwen, tmp_path / "a", alpha_pattern={r"layers\.1\.self_attn\.v_proj": 2 * ALPHA})
    convert_adapter(tmp_path / "a", tmp_path / "own.gguf", base=base)
    plain, own = values(tmp_path / "plain.gguf"), values(tmp_path / "own.gguf")
    changed = {name: own[name] / plain[name] for name in plain if not np.array_equal(plain[name], own[name])}
    assert list(changed) == ["blk.1.attn_v.weight.lora_b"]
    assert np.allclose(changed["blk.1.attn_v.weight.lora_b"], 2)


def test_names_with_and_without_wrappers(qwen: Tensors, base: dict[str, Any], tmp_path: Path) -> None:
    for prefix in ("base_model.model.", "", "base_model.model.model.language_model."):
        tensors = {name.removeprefix("model.") if "language" in prefix else name: t for name, t in qwen.items()}
        adapter_of(tensors, tmp_path / "a", prefix)
        (tmp_path / "a.gguf").unlink(missing_ok=True)
        convert_adapter(tmp_path / "a", tmp_path / "a.gguf", base=base)
        assert "blk.1.ffn_down.weight.lora_a" in values(tmp_path / "a.gguf"), prefix


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "'peft_type' is \"IA3\", expected LORA"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "'bias' is \"all\", expected none"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights"),
        ({"lora_alpha": None}, "missing 'lora_alpha'"),
        ({"r": 8}, "has rank 4, expected 8"),
        ({"rank_pattern": {"q_proj": 3}}, "has rank 4, expected 3"),
        ({"alpha_pattern": {"(": 3}}, "a pattern of modules' names"),
    ],
)
def test_other_kinds_are_refused(
    config: dict[str, Any], message: str, qwen: Tensors, base: dict[str, Any], tmp_path: Path
) -> None:
    adapter_of(qwen, tmp_path / "a", **config)
    with pytest.raises(ConvertError, match=message):
        convert_adapter(tmp_path / "a", tmp_path / "a.gguf", base=base)
    assert not (tmp_path / "a.gguf").exists()


class TestWeights:
    @pytest.fixture
    def refused(self, base: dict[str, Any], tmp_path: Path) -> Callable[..., None]:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 2}))

        def refuse(tensors: Tensors, message: str, **change: Any) -> None:
            if tensors:
                save_file(tensors, tmp_path / "a" / "adapter_model.safetensors")
            with pytest.raises(ConvertError, match=message):
                convert_adapter(tmp_path / "a", tmp_path / "a.gguf", base={**base, **change})

        return refuse

    def test_what_is_no_adapter(self, refused: Callable[..., None]) -> None:
        stem = "base_model.model.model.layers.0.self_attn.q_proj"
        a, b = np.zeros((2, 64), np.float32), np.zeros((64, 2), np.float32)
        pair = {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
        refused({}, "adapter_model.safetensors: missing")
        refused({f"{stem}.lora_A.weight": a}, "has lora_A only")
        refused({**pair, "other": a}, "unexpected tensor 'other'")
        refused({**pair, f"{stem}.lora_A.second.weight": a}, "the module has another")
        refused({f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b[:, :1].copy()}, "expected .rank, n_in.")
        refused({name.replace("layers.0", "layers.7"): t for name, t in pair.items()}, "unexpected tensor")
        refused({name: t.astype(np.int8) for name, t in pair.items()}, "is I8, expected")
        refused(pair, "unsupported architecture of an adapter's base: 'bert'", **{"general.architecture": "bert"})
        refused(pair, "missing 'num_hidden_layers'", **{"general.architecture": "llama"})

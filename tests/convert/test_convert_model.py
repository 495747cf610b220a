"""Types, spellings of configs and names, progress and memory of a conversion."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from localllm.convert import ConvertError, convert_model
from localllm.convert.folder import Config
from localllm.convert.numbers import converted, from_float32, to_float32
from localllm.convert.rope import read_rope
from localllm.gguf import GGMLType, open_gguf
from localllm.gguf.header import read_metadata


@pytest.mark.parametrize(
    ("stored", "wanted", "matrices", "file_type"),
    [
        ("F32", "auto", "F16", 1),
        ("F16", "auto", "F16", 1),
        ("BF16", "auto", "BF16", 32),
        ("BF16", "F16", "F16", 1),
        ("F32", "bf16", "BF16", 32),
        ("F16", "F32", "F32", 0),
    ],
)
def test_types(
    stored: str, wanted: str, matrices: str, file_type: int, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = checkpoint("bert", dtype=stored)
    convert_model(folder, tmp_path / "m.gguf", dtype=wanted)
    with open_gguf(tmp_path / "m.gguf") as file:
        assert file.metadata["general.file_type"] == file_type
        for name, info in file.tensors.items():
            precise = len(info.shape) == 1 or name in ("position_embd.weight", "token_types.weight")
            assert info.type is GGMLType[("F32" if precise else matrices)], name
        values = file.tensors["blk.1.ffn_up.weight"].data
        got = to_float32(values.view({"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[matrices]), matrices)
    expected = json.loads((folder / "config.json").read_text())
    assert got.size == expected["hidden_size"] * expected["intermediate_size"] and np.isfinite(got).all()


def test_an_unknown_type(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="unsupported type 'Q4_0', expected auto, F32, F16, BF16"):
        convert_model(checkpoint("bert"), tmp_path / "m.gguf", dtype="Q4_0")


def test_bf16_is_rounded_to_the_nearest() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.4e38, np.inf, np.nan, 1e-40], np.float32)
    back = to_float32(from_float32(values, "BF16"), "BF16")
    assert back[:3].tolist() == [1.0, 1.0, 1.015625]  # ties go to the even one
    assert np.isneginf(back[3]) or abs(back[3] / -3.4e38 - 1) < 0.005
    assert np.isposinf(back[4]) and np.isnan(back[5])
    assert converted(values, "F32", "F32") is values


def test_progress_and_metadata(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert_model(
        checkpoint("llama", config={"_name_or_path": "someone/Tiny-Llama"}),
        tmp_path / "m.gguf",
        progress=lambda done, total: seen.append((done, total)),
    )
    with open_gguf(tmp_path / "m.gguf") as file:
        total = sum(info.nbytes for info in file.tensors.values())
    assert seen[0] == (0, total) and seen[-1] == (total, total) and seen == sorted(seen)
    metadata = read_metadata(tmp_path / "m.gguf")
    assert metadata["general.name"] == "Tiny-Llama" and metadata["general.type"] == "model"
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert (metadata["llama.context_length"], metadata["llama.attention.head_count_kv"]) == (128, 2)


def test_shards_give_the_same_file(checkpoint: Callable[..., Path], hf_models: ModuleType, tmp_path: Path) -> None:
    folder = checkpoint("qwen2")
    convert_model(folder, tmp_path / "whole.gguf")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, files = sorted(tensors), {}
    for i in range(3):
        file = f"model-{i + 1:05d}-of-00003.safetensors"
        hf_models.write_safetensors(folder / file, {name: tensors[name] for name in names[i::3]})
        files |= dict.fromkeys(names[i::3], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    convert_model(folder, tmp_path / "shards.gguf")
    assert content(tmp_path / "shards.gguf") == content(tmp_path / "whole.gguf")


def content(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    with open_gguf(path) as file:
        tensors = {name: info.data.tobytes() for name, info in file.tensors.items()}
    return {**read_metadata(path), "general.name": ""}, tensors


class TestSpellings:
    """Configs and names as they are published, beside those that the newest `transformers` writes."""

    def same(self, one: Path, other: Path, tmp_path: Path) -> None:
        convert_model(one, tmp_path / "1.gguf")
        convert_model(other, tmp_path / "2.gguf")
        assert content(tmp_path / "1.gguf") == content(tmp_path / "2.gguf")

    def test_rope_of_llama_3(self, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
        old = checkpoint("llama-3", folder="old")
        config = json.loads((old / "config.json").read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        (old / "config.json").write_text(json.dumps({**config, "rope_scaling": rope}))
        self.same(checkpoint("llama-3", folder="new"), old, tmp_path)

    def test_gemma_3(self, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
        old = checkpoint("gemma3", folder="old")
        config = json.loads((old / "config.json").read_text())
        del config["rope_parameters"], config["layer_types"]
        config |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"type": "linear", "factor": 8.0}}
        (old / "config.json").write_text(json.dumps({**config, "sliding_window_pattern": 6}))
        self.same(checkpoint("gemma3", folder="new"), old, tmp_path)

    def test_gemma_3_with_images(self, checkpoint: Callable[..., Path], hf_models: ModuleType, tmp_path: Path) -> None:
        old = checkpoint("gemma3-vision", folder="old")
        renamed = {
            name.replace("model.language_model.", "language_model.model.").removeprefix("model."): tensor
            for name, tensor in load_file(old / "model.safetensors").items()
        }
        hf_models.write_safetensors(old / "model.safetensors", renamed)
        self.same(checkpoint("gemma3-vision", folder="new"), old, tmp_path)

    def test_bert_with_a_head(self, checkpoint: Callable[..., Path], hf_models: ModuleType, tmp_path: Path) -> None:
        old = checkpoint("bert", folder="old", config={"architectures": ["BertForMaskedLM"]})
        renamed = {
            f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
            for name, t in load_file(old / "model.safetensors").items()
        }
        renamed["cls.predictions.bias"] = np.zeros(300, np.float32)
        hf_models.write_safetensors(old / "model.safetensors", renamed)
        self.same(checkpoint("bert", folder="new"), old, tmp_path)

    def test_nomic_bert_as_its_maker_writes_it(
        self,
        checkpoint: Callable[..., Path],
        hf_models: ModuleType,
        rows_of: Callable[..., np.ndarray],
        tmp_path: Path,
    ) -> None:
        folder = checkpoint("nomic-bert")
        config = {
            "architectures": ["NomicBertModel"],
            "activation_function": "swiglu",
            "n_embd": 64,
            "n_head": 4,
            "n_inner": 96,
            "n_layer": 2,
            "n_positions": 64,
            "layer_norm_epsilon": 1e-12,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
            "type_vocab_size": 2,
        }
        (folder / "config.json").write_text(json.dumps(config))
        convert_model(folder, tmp_path / "m.gguf", dtype="F32")
        tokens, expected = hf_models.recorded("nomic-bert")
        assert np.abs(rows_of(tmp_path / "m.gguf", tokens, hidden=True)[-1] - expected).max() < 1e-5


class TestRope:
    def read(self, **config: Any) -> dict[str, Any]:
        return dict(read_rope(Config(Path("config.json"), config), 8, ("linear", "yarn", "llama3")).metadata)

    def test_plain(self) -> None:
        assert self.read() == {"rope.dimension_count": 8, "rope.freq_base": 10000.0}
        assert self.read(rope_theta=5e5, rope_scaling=None)["rope.freq_base"] == 5e5
        dynamic = self.read(rope_scaling={"type": "dynamic", "factor": 2.0})
        assert dynamic == {"rope.dimension_count": 8, "rope.freq_base": 10000.0}

    def test_yarn_with_two_magnitudes(self) -> None:
        scaling = {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}
        found = self.read(rope_scaling=scaling, max_position_embeddings=4096)
        assert found["rope.scaling.attn_factor"] == pytest.approx(1 / (0.1 * np.log(40) + 1))
        assert found["rope.scaling.original_context_length"] == 4096

    @pytest.mark.parametrize("factor", [0, -1, "x", True, 1e300])
    def test_factors_that_cannot_be(self, factor: Any) -> None:
        with pytest.raises(ConvertError, match="'factor'"):
            self.read(rope_scaling={"type": "linear", "factor": factor})


MEASURE = """
import sys
from pathlib import Path
from localllm.convert import convert_model
convert_model(Path(sys.argv[1]), Path(sys.argv[2]), dtype=sys.argv[3])
(line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(line.split()[1]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from Linux's /proc")
@pytest.mark.parametrize("dtype", ["auto", "F16"])
def test_memory_does_not_grow_with_the_model(
    dtype: str, checkpoint: Callable[..., Path], hf_models: ModuleType, tmp_path: Path
) -> None:
    """A gigabyte of BF16, whose largest tensor has 128 MB: kept as it is, and turned into F16."""
    small = measured(checkpoint("llama"), tmp_path / "small.gguf", dtype)
    folder = checkpoint(
        "llama", folder="big", config={"hidden_size": 2048, "intermediate_size": 32768, "head_dim": 512}
    )
    shapes = hf_models.models()["llama"]["tensors"]["model.safetensors"]
    sizes = {64: 2048, 96: 32768, 32: 1024}
    header, end = {}, 0
    for name, shape in shapes.items():
        grown = [n if n == 300 else sizes[n] for n in shape]
        begin, end = end, end + 2 * math.prod(grown)
        header[name] = {"dtype": "BF16", "shape": grown, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:  # zeros that take no room on the disk
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    size = (folder / "model.safetensors").stat().st_size
    big = measured(folder, tmp_path / "big.gguf", dtype)
    print(f"{size / 1e6:.0f} MB: {small} MB, {big} MB")
    assert size > 850e6
    assert big - small < 150


def measured(folder: Path, path: Path, dtype: str) -> int:
    """Peak of resident memory, in MB."""
    command = [sys.executable, "-c", MEASURE, str(folder), str(path), dtype]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

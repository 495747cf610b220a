"""Folders and files that are damaged, incomplete or of another kind are refused with what was expected."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from localllm.convert import ConvertError, convert_model
from localllm.convert.checkpoint import read_checkpoint, read_header
from localllm.convert.folder import Folder


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin: int, end: int, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has 0 bytes"),
        (b"version https://git-lfs.github.com", "Git LFS pointer"),
        (raw({}, length=1 << 60), "its header has 1152921504606846976 bytes"),
        (raw(b"{"), "no JSON"),
        (raw(b"[" * 5000), "no JSON"),
        (raw(b"[]"), "no JSON object"),
        (raw(b'{"a": 1, "a": 2}'), "'a' is twice"),
        (raw({"a": 5}), "'a': shape is None"),
        (raw({"a": entry(0, 8)}, bytes(7)), "truncated: .* expected"),
        (raw({"a": entry(0, 8)}, bytes(9)), "bytes that belong to no tensor"),
        (raw({"a": entry(0, 7)}, bytes(7)), "'a': data_offsets .0, 7., expected 8 bytes for F32 .2."),
        (raw({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "'b' begins at byte"),
        (raw({"a": entry(4, 12)}, bytes(12)), "'a' begins at byte"),
        (raw({"a": entry(0, 8, dtype="Q4")}, bytes(8)), "dtype is 'Q4', expected one of F64, F32"),
        (raw({"a": entry(0, 8, dtype=["F32"])}, bytes(8)), "dtype is"),
        (raw({"a": entry(0, 8, shape=[-2])}, bytes(8)), "shape is .-2., expected a list of sizes"),
        (raw({"a": entry(0, 8, shape=[2**40, 2**40])}, bytes(8)), "expected .* bytes"),
        (raw({"a": entry(0, 8, shape=[1] * 9)}, bytes(8)), "expected a list of sizes"),
        (raw({"a": entry(8, 0)}, bytes(8)), "expected 8 bytes"),
    ],
)
def test_a_damaged_file(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConvertError, match=message) as caught:
        read_header(path)
    assert str(caught.value).startswith(f"{path}: ")


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4), st.integers(0, 300))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_bytes_are_an_error_or_read_as_the_library_does(
    tmp_path: Path, at: int, change: bytes, cut: int
) -> None:
    good = raw({"a": entry(0, 8), "b": entry(8, 14, "F16", [3, 1])}, bytes(range(14)))
    damaged = bytearray(good[: len(good) - cut // 10] if cut > 200 else good)
    at %= len(damaged)
    damaged[at : at + len(change)] = change
    path = tmp_path / "model.safetensors"
    path.write_bytes(damaged)
    try:
        ours = read_header(path)
    except ConvertError:
        return
    try:
        theirs = load_file(path)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError):
        return
    assert sorted(ours) == sorted(theirs)
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape
        assert ours[name].read().tobytes() == tensor.tobytes()


class TestFolders:
    @pytest.fixture
    def pieces(self, tmp_path: Path, hf_models: ModuleType) -> Path:
        for i in (1, 2):
            tensors = {f"t{i}": np.full(2, i, np.float32)}
            hf_models.write_safetensors(tmp_path / f"model-0000{i}-of-00002.safetensors", tensors)
        self.index(tmp_path, {"t1": "model-00001-of-00002.safetensors", "t2": "model-00002-of-00002.safetensors"})
        return tmp_path

    def index(self, folder: Path, weight_map: dict[str, Any]) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    def test_shards(self, pieces: Path) -> None:
        assert list(read_checkpoint(Folder(pieces))) == ["t1", "t2"]
        (pieces / "model.safetensors.index.json").unlink()
        assert list(read_checkpoint(Folder(pieces))) == ["t1", "t2"]

    def test_one_level_down(self, pieces: Path) -> None:
        (pieces / "sub").mkdir()
        for path in list(pieces.glob("model*")):
            path.rename(pieces / "sub" / path.name)
        assert list(read_checkpoint(Folder(pieces))) == ["t1", "t2"]
        (pieces / "sub" / "model.safetensors.index.json").unlink()
        assert list(read_checkpoint(Folder(pieces))) == ["t1", "t2"]

    def test_a_missing_shard(self, pieces: Path) -> None:
        (pieces / "model-00002-of-00002.safetensors").unlink()
        with pytest.raises(ConvertError, match=r"model-00002-of-00002.safetensors: missing"):
            read_checkpoint(Folder(pieces))

    def test_a_tensor_that_the_index_misses(self, pieces: Path) -> None:
        self.index(pieces, {"t1": "model-00001-of-00002.safetensors", "t3": "model-00002-of-00002.safetensors"})
        with pytest.raises(ConvertError, match="missing tensor 't3'"):
            read_checkpoint(Folder(pieces))

    @pytest.mark.parametrize("file", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "x.bin", 5])
    def test_an_index_that_leaves_the_folder(self, pieces: Path, file: Any) -> None:
        self.index(pieces, {"t1": file})
        with pytest.raises(ConvertError, match="expected the name of a safetensors file beside it"):
            read_checkpoint(Folder(pieces))

    def test_two_files_with_one_tensor(self, pieces: Path) -> None:
        (pieces / "model.safetensors.index.json").unlink()
        (pieces / "model-x.safetensors").write_bytes((pieces / "model-00001-of-00002.safetensors").read_bytes())
        with pytest.raises(ConvertError, match=r"'t1' is in model-00001-of-00002.safetensors as well"):
            read_checkpoint(Folder(pieces))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("pytorch_model.bin", "programs"),
            ("consolidated.safetensors", "its maker's own names"),
            ("consolidated.00.pth", "programs"),
            ("readme", "no model"),
        ],
    )
    def test_other_weights(self, name: str, message: str, tmp_path: Path) -> None:
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(ConvertError, match=message):
            read_checkpoint(Folder(tmp_path))


class TestModels:
    """A whole folder, with one thing wrong: nothing is left of the destination."""

    @pytest.fixture
    def refused(self, tmp_path: Path) -> Callable[..., ConvertError]:
        def refuse(folder: Path, message: str) -> ConvertError:
            with pytest.raises(ConvertError, match=message) as caught:
                convert_model(folder, tmp_path / "out.gguf")
            assert not (tmp_path / "out.gguf").exists()
            return caught.value

        return refuse

    def test_no_folder(self, tmp_path: Path, refused: Callable[..., ConvertError]) -> None:
        refused(tmp_path / "nowhere", "not a folder")
        refused(tmp_path, "config.json: missing")

    def test_an_unknown_class(self, checkpoint: Callable[..., Path], refused: Callable[..., ConvertError]) -> None:
        folder = checkpoint("llama", config={"architectures": ["MixtralForCausalLM"]})
        error = refused(folder, '^unsupported architecture "MixtralForCausalLM"$')
        assert error.hint is not None and "LlamaForCausalLM" in error.hint

    @pytest.mark.parametrize(
        ("name", "config", "message"),
        [
            ("llama", {"quantization_config": {"quant_method": "fp8"}}, r"quantized \(fp8\)"),
            ("llama", {"hidden_act": "relu"}, "'hidden_act' is \"relu\", expected 'silu'"),
            ("llama", {"num_attention_heads": 6}, "heads"),
            ("llama", {"num_hidden_layers": 3}, "cannot be run: missing tensor"),
            ("llama", {"num_hidden_layers": 1}, "unexpected tensor"),
            ("llama", {"num_hidden_layers": "two"}, "'num_hidden_layers' is \"two\", expected an integer in 1..512"),
            ("llama", {"hidden_size": 128}, "cannot be run: .*shape"),
            ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "'rope_type' is \"longrope\", expected one of"),
            ("llama", {"architectures": []}, "'architectures'"),
            ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
            ("qwen2", {"rope_parameters": {"rope_type": "llama3"}}, "rope_type"),
            ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor"),
            ("gemma3", {"layer_types": ["full_attention"]}, "expected a list of 7"),
            ("gemma-embedding", {"use_bidirectional_attention": False}, "use_bidirectional_attention"),
            ("bert", {"hidden_act": "relu"}, "'hidden_act'"),
            ("bert", {"is_decoder": True}, "is_decoder"),
        ],
    )
    def test_a_config_that_does_not_do(
        self,
        name: str,
        config: dict[str, Any],
        message: str,
        checkpoint: Callable[..., Path],
        refused: Callable[..., ConvertError],
    ) -> None:
        refused(checkpoint(name, config=config), message)

    def test_tensors_that_do_not_do(
        self, checkpoint: Callable[..., Path], hf_models: ModuleType, refused: Callable[..., ConvertError]
    ) -> None:
        folder = checkpoint("llama")
        tensors = load_file(folder / "model.safetensors")
        cases: list[tuple[dict[str, np.ndarray], str]] = [
            ({**tensors, "model.layers.0.extra.weight": np.zeros(2, np.float32)}, "unexpected tensor .*extra"),
            ({k: v for k, v in tensors.items() if k != "lm_head.weight"}, "missing tensor 'lm_head.weight'"),
            ({k: v for k, v in tensors.items() if "up_proj" not in k}, "missing tensor"),
            ({k: v for k, v in tensors.items() if "embed" not in k}, "missing tensor 'token_embd.weight'"),
            ({k: v[:-1] if "down_proj" in k else v for k, v in tensors.items()}, "shape"),
        ]
        for changed, message in cases:
            hf_models.write_safetensors(folder / "model.safetensors", changed)
            refused(folder, message)

    def test_eight_bit_floats(
        self, checkpoint: Callable[..., Path], tmp_path: Path, refused: Callable[..., ConvertError]
    ) -> None:
        folder = checkpoint("llama")
        path = folder / "model.safetensors"
        start = path.read_bytes()
        (length,) = struct.unpack("<Q", start[:8])
        header = json.loads(start[8 : 8 + length])
        begin, end = header["lm_head.weight"]["data_offsets"]
        header["lm_head.weight"] |= {"dtype": "F8_E4M3", "shape": [end - begin]}
        path.write_bytes(raw(header, start[8 + length :]))
        error = refused(folder, "'lm_head.weight' is F8_E4M3, expected F32, F16 or BF16")
        assert error.hint is not None

    def test_numbers_too_large_for_f16(
        self, checkpoint: Callable[..., Path], hf_models: ModuleType, refused: Callable[..., ConvertError]
    ) -> None:
        folder = checkpoint("llama")
        tensors = load_file(folder / "model.safetensors")
        tensors["lm_head.weight"][3, 4] = 1e6
        hf_models.write_safetensors(folder / "model.safetensors", tensors)
        refused(folder, r"'output.weight': 1e\+06 does not fit F16")

    def test_a_destination_that_exists_stays(self, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
        (tmp_path / "out.gguf").write_bytes(b"mine")
        with pytest.raises(FileExistsError):
            convert_model(checkpoint("llama"), tmp_path / "out.gguf")
        assert (tmp_path / "out.gguf").read_bytes() == b"mine"


ODD: tuple[Any, ...] = (None, -1, 0, 2, 3.5, "x", "", [], {}, True, False, 1e300, [1], ["a"], {"a": 1}, 2**40, [None])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values inside of a JSON value; of long lists and objects the first ones."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in itertools.islice(items, 40 if isinstance(value, dict) else 6):
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("name", ["llama-3", "gemma3", "bert", "qwen3-ranker", "gemma-embedding"])
def test_odd_values_in_any_file_raise_nothing_else(name: str, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = checkpoint(name)
    rng = random.Random(name)
    files = sorted(folder.rglob("*.json"))
    for _ in range(40):
        path = rng.choice(files)
        text = path.read_text()
        values = json.loads(text)
        *way, last = rng.choice(list(places(values)))
        inner = values
        for key in way:
            inner = inner[key]
        inner[last] = rng.choice(ODD)
        path.write_text(json.dumps(values))
        with contextlib.suppress(ConvertError):
            convert_model(folder, tmp_path / "out.gguf")
            (tmp_path / "out.gguf").unlink()
        assert not (tmp_path / "out.gguf").exists()
        path.write_text(text)

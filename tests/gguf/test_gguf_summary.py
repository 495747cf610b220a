"""Labels as people read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localllm.gguf import GGMLType, open_gguf
from localllm.gguf.summary import read_summary, size_label

Write = Callable[..., Path]
U32, STRING = 4, 8


@pytest.mark.parametrize(
    ("n", "label"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (70_000, "70K"),
        (1_000_000, "1M"),
        (125_000_000, "125M"),
        (134_515_008, "134.52M"),
        (268_098_176, "268.10M"),
        (999_999_999, "1000.00M"),
        (1_000_000_000, "1B"),
        (1_235_814_432, "1.2B"),
        (8_030_261_312, "8.0B"),
        (2_850_000_000, "2.9B"),
        (70_553_706_560, "70.6B"),
        (1_000_000_000_000, "1000B"),
    ],
)
def test_size_label(n: int, label: str) -> None:
    assert size_label(n) == label


def test_summary(tmp_path: Path, tiny_models: ModuleType) -> None:
    path = tmp_path / "m.gguf"
    tiny_models.random_model(path)
    summary = read_summary(path)
    with open_gguf(path) as f:
        assert summary.parameter_count == f.parameter_count == sum(t.n_elements for t in f.tensors.values())
        assert summary.parameter_size == f.parameter_size == "57K"
        assert summary.file_type == f.file_type_name == "F32"
        assert summary.file_bytes == f.file_bytes == path.stat().st_size
    assert (summary.architecture, summary.n_ctx_train, summary.n_embd, summary.n_layer) == ("llama", 4096, 64, 1)


def test_summary_of_an_empty_file(write: Write) -> None:
    summary = read_summary(write())
    assert (summary.architecture, summary.n_ctx_train, summary.file_type) == (None, None, "unknown")


@pytest.mark.parametrize(("number", "name"), [(15, "Q4_K_M"), (7, "Q8_0"), (17, "Q5_K_M"), (38, "MXFP4"), (32, "BF16")])
def test_file_type_from_metadata(write: Write, number: int, name: str) -> None:
    assert read_summary(write(kvs=[("general.file_type", U32, number)])).file_type == name


@pytest.mark.parametrize("kvs", [[], [("general.file_type", U32, 1024)], [("general.file_type", STRING, "Q4")]])
def test_file_type_from_the_matrices(write: Write, tensor_fields: Any, kvs: list[Any]) -> None:
    q4, q6 = GGMLType.Q4_K, GGMLType.Q6_K
    tensors = [tensor_fields(f"norm{i}", (32,), GGMLType.F32, 128) for i in range(9)]
    tensors += [tensor_fields(f"m{i}", (256, 1), q4, q4.type_size) for i in range(3)]
    tensors += [tensor_fields("embd", (256, 9), q6, 9 * q6.type_size)]
    assert read_summary(write(kvs=kvs, tensors=tensors)).file_type == "Q4_K_M"

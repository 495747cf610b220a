"""Split models: any order, and every way in which a part can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localllm.errors import GGUFError
from localllm.gguf import open_gguf
from localllm.gguf.summary import read_summary

Write = Callable[..., Path]
U16, U32, I32, STRING = 2, 4, 5, 8
NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def part(write: Write, tensor_fields: Any) -> Callable[..., Path]:
    """`part(no)` writes part `no` (from 0) of a model in three parts with four tensors."""

    def write_part(
        no: int, file: str | None = None, names: list[str] | None = None, count: int = 3, total: int = 4
    ) -> Path:
        names = names if names is not None else [NAMES[no]] if no < 2 else NAMES[2:]
        kvs = [("split.no", U16, no), ("split.count", U16, count), ("split.tensors.count", I32, total)]
        if no == 0:
            kvs.append(("general.architecture", STRING, "llama"))
        tensors = [tensor_fields(name, (32, NAMES.index(name) + 1), 0, 128 * (NAMES.index(name) + 1)) for name in names]
        return write(file or f"t-{no + 1:05d}-of-{count:05d}.gguf", kvs=kvs, tensors=tensors)

    return write_part


@pytest.mark.parametrize("start", [0, 1, 2])
def test_any_part_finds_the_others(part: Callable[..., Path], start: int) -> None:
    paths = [part(no) for no in range(3)]
    with open_gguf(paths[start]) as f:
        assert list(f.tensors) == NAMES and f.paths == paths and f.architecture == "llama"
        assert f.tensors["c"].path == paths[2] and f.tensors["c"].data.nbytes == 384
        assert f.parameter_count == 32 * (1 + 2 + 3 + 4)
        assert f.file_bytes == sum(path.stat().st_size for path in paths)
    assert read_summary(paths[start]).file_bytes == sum(path.stat().st_size for path in paths)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_parts_without_their_names(part: Callable[..., Path], order: tuple[int, ...]) -> None:
    paths = [part(no, file=f"sha256-{no}") for no in range(3)]
    with open_gguf([paths[no] for no in order]) as f:
        assert list(f.tensors) == NAMES and f.paths == paths


def refused(paths: Any, *words: str) -> None:
    with pytest.raises(GGUFError) as caught:
        open_gguf(paths)
    for word in words:
        assert word in str(caught.value), caught.value


def test_missing_part(part: Callable[..., Path]) -> None:
    paths = [part(0), part(1)]
    refused(paths[0], "t-00003-of-00003.gguf", "missing part")
    refused(paths, "part 3 of 3 is missing")


def test_double_part(part: Callable[..., Path]) -> None:
    refused([part(0), part(1), part(1, file="again.gguf"), part(2)], "again.gguf", "part 2 of 3 is double")


def test_name_that_does_not_lead_to_the_others(part: Callable[..., Path]) -> None:
    refused(part(1, file="m.gguf"), "part 2 of 3", "-00002-of-00003.gguf")
    refused(part(1, file="m-00002-of-00004.gguf"), "part 2 of 3")


def test_part_of_a_model_with_another_count(part: Callable[..., Path]) -> None:
    part(0), part(1)
    part(2, file="t-00003-of-00003.gguf", count=5)
    refused(part(0), "t-00003-of-00003.gguf", "belongs to another model")


def test_part_of_a_model_with_another_total(part: Callable[..., Path]) -> None:
    part(0), part(2)
    refused([part(0), part(1, total=9), part(2)], "t-00002-of-00003.gguf", "9", "belongs to another model")


def test_part_with_tensors_of_another(part: Callable[..., Path]) -> None:
    refused([part(0), part(1, names=["a"]), part(2)], "t-00002-of-00003.gguf", "'a' is in", "another model")


def test_too_few_tensors(part: Callable[..., Path]) -> None:
    refused([part(0), part(1, names=[]), part(2)], "hold 3 tensors", "expected 4")


def test_plain_file_among_parts(part: Callable[..., Path], write: Write) -> None:
    refused([part(0), write("plain.gguf"), part(2)], "plain.gguf", "not a part of a split model")
    refused([write("plain.gguf"), part(0)], "plain.gguf", "not a part of a split model")


def test_damaged_part(part: Callable[..., Path]) -> None:
    paths = [part(no) for no in range(3)]
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    refused(paths[0], "t-00003-of-00003.gguf", "truncated")


@pytest.mark.parametrize("name", ["m-00001-of-00001.gguf", "m.gguf"])
def test_one_of_one(part: Callable[..., Path], name: str) -> None:
    with open_gguf(part(0, file=name, names=NAMES, count=1)) as f:
        assert list(f.tensors) == NAMES


def test_split_keys_of_a_wrong_kind(write: Write) -> None:
    refused(write(kvs=[("split.count", STRING, "three")]), "'split.count' is 'three'")


def test_no_paths() -> None:
    refused([], "no GGUF file")

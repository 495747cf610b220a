"""Whatever is done to a file, only GGUFError comes out, and memory stays bounded by the size of the file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.errors import GGUFError
from localllm.gguf import check_tensors, open_gguf
from localllm.gguf.header import Header
from localllm.gguf.summary import read_summary

SETTINGS = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MEMORY_LIMIT = 16 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_models: ModuleType) -> tuple[Path, bytes, int]:
    """A file to write damaged copies to, the undamaged bytes, and where the tensor data starts."""
    path = tmp_path_factory.mktemp("damage") / "m.gguf"
    tiny_models.random_model(path)
    return path, path.read_bytes(), Header(path).data_offset


def survives(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        with open_gguf(path) as f:
            for key in f.metadata:
                f.metadata[key]
            check_tensors(f.tensors.values())
        read_summary(path)
    except GGUFError as error:
        assert str(path) in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEMORY_LIMIT


@SETTINGS
@given(data=st.data())
def test_truncated(model: tuple[Path, bytes, int], data: st.DataObject) -> None:
    path, raw, start = model
    survives(path, raw[: data.draw(st.one_of(st.integers(0, start), st.integers(0, len(raw))))])


@SETTINGS
@given(data=st.data())
def test_flipped_bits(model: tuple[Path, bytes, int], data: st.DataObject) -> None:
    path, raw, start = model
    damaged = bytearray(raw)
    for bit in data.draw(st.lists(st.integers(0, 8 * start - 1), min_size=1, max_size=8)):
        damaged[bit // 8] ^= 1 << bit % 8
    survives(path, bytes(damaged))


@SETTINGS
@given(data=st.data())
def test_overwritten_fields(model: tuple[Path, bytes, int], data: st.DataObject) -> None:
    path, raw, start = model
    damaged = bytearray(raw)
    at = data.draw(st.integers(0, start - 8))
    number = data.draw(st.sampled_from([0, 1, 2**30, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]))
    damaged[at : at + 8] = number.to_bytes(8, "little")
    survives(path, bytes(damaged))


@SETTINGS
@given(tail=st.binary(max_size=300), version=st.sampled_from([2, 3]))
def test_noise_after_the_version(model: tuple[Path, bytes, int], tail: bytes, version: int) -> None:
    survives(model[0], b"GGUF" + version.to_bytes(4, "little") + tail)

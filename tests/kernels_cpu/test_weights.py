"""The cache file of packed weights: made once, mapped afterwards, never trusted when it is not whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from kernels_cpu import KernelError
from kernels_cpu.graph import Weight
from kernels_cpu.packing import pack, packed_shape
from kernels_cpu.weights import PackedWeights, pack_weights


def weights() -> list[Weight]:
    rng = np.random.default_rng(0)
    return [Weight(f"w{i}", 8, 20, 64, rng.integers(0, 120, 20 * 68, np.uint8).astype(np.uint8)) for i in range(3)]


def check(packed: PackedWeights) -> None:
    import ctypes

    for w in weights():
        want = np.zeros(packed_shape(w).nbytes, np.uint8)
        pack(w, want)
        got = np.ctypeslib.as_array((ctypes.c_uint8 * want.nbytes).from_address(packed.address(w.name)))
        np.testing.assert_array_equal(got, want)


def build(path: Path | None, identity: str = "a") -> int:
    """Pack, check, and give how often progress was reported: 0 when the file was used."""
    calls: list[tuple[int, int]] = []
    check(pack_weights(weights(), path, identity, lambda done, total: calls.append((done, total))))
    if calls:
        assert calls[0][0] == 0 and calls[-1][0] == calls[-1][1]
    return len(calls)


def test_in_memory() -> None:
    assert build(None) > 0


def test_the_second_time_the_file_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "m.packed"
    assert build(path) > 0
    assert build(path) == 0
    assert [p.name for p in path.parent.iterdir()] == ["m.packed"]


def test_a_file_of_another_model_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.packed"
    build(path, "a")
    assert build(path, "b") > 0
    assert build(path, "b") == 0


def test_a_file_of_another_layout_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.packed"
    build(path)
    monkeypatch.setattr("kernels_cpu.weights.layout_digest", lambda: b"else")
    assert build(path) > 0
    assert build(path) == 0


@pytest.mark.parametrize("damage", ["truncated", "longer", "header", "empty"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m.packed"
    build(path)
    data = bytearray(path.read_bytes())
    changed = {"truncated": data[:-1], "longer": data + b"x", "header": b"\1" + data[1:], "empty": b""}[damage]
    path.write_bytes(changed)
    assert build(path) > 0
    assert path.read_bytes() == data


def test_a_folder_that_cannot_be_written_means_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert build(tmp_path / "file" / "m.packed") > 0


def test_a_disk_that_is_short_means_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 100, 10))
    assert build(tmp_path / "m.packed") > 0
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_meanwhile_means_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, n_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    assert build(tmp_path / "m.packed") > 0
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_goes_and_what_others_make_stays(tmp_path: Path) -> None:
    old, young = tmp_path / "m.packed.1.partial", tmp_path / "n.packed.2.partial"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    build(tmp_path / "m.packed")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.packed", young.name]


def test_an_error_while_packing_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(weight: Weight, out: np.ndarray) -> None:
        raise KernelError("no such type")

    monkeypatch.setattr("kernels_cpu.weights.pack", fail)
    with pytest.raises(KernelError, match="no such type"):
        pack_weights(weights(), tmp_path / "m.packed")
    assert not list(tmp_path.iterdir())

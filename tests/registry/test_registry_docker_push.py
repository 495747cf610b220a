"""Pushing to Debian's docker-registry, a real one: bytes, kills, pushes at once, nothing twice."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

import registry
from measuring.ports import free_port
from registry.digests import digest_of
from registry.manifest import CONFIG_MEDIA_TYPE, LAYER_MEDIA_TYPE_PREFIX, Layer, build_manifest
from registry.push import push
from registry.remote import Access

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="needs docker-registry (apt-get install it)"),
]
CONFIG = """
version: 0.1
storage: {filesystem: {rootdirectory: "%s"}, delete: {enabled: true}}
http: {addr: "127.0.0.1:%d"}
log: {level: debug}
"""


class DockerRegistry:
    """The process; `log` is its access log so far."""

    def __init__(self, folder: Path) -> None:
        self.host = f"127.0.0.1:{free_port()}"
        folder.mkdir()
        config, self._log = folder / "config.yml", folder / "log"
        config.write_text(CONFIG % (folder / "data", int(self.host.rpartition(":")[2])))
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log)
        self.url = f"http://{self.host}/v2"
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{self.url}/", trust_env=False)
                return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(self.log)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def get(self, path: str) -> bytes:
        accept = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
        response = httpx.get(f"{self.url}/{path}", headers=accept, trust_env=False)
        response.raise_for_status()
        return response.content

    def has_tag(self, name: str, tag: str) -> bool:
        return httpx.get(f"{self.url}/{name}/manifests/{tag}", trust_env=False).status_code == 200


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[DockerRegistry]:
    made = DockerRegistry(tmp_path / "registry")
    yield made
    made.process.terminate()
    made.process.wait()


def put(store: registry.Store, name: registry.Name, layers: Sequence[tuple[str, bytes]]) -> None:
    """A model whose manifest says what it is, as real registries want it."""

    def stored(media_type: str, content: bytes) -> Layer:
        return Layer(media_type, store.blobs.put(content)[0], len(content))

    config = stored(CONFIG_MEDIA_TYPE, b'{"model_format":"gguf","os":"linux","architecture":"amd64"}')
    made = [stored(LAYER_MEDIA_TYPE_PREFIX + kind, content) for kind, content in layers]
    store.write_manifest(name, build_manifest(config, made))


def check_same(docker: DockerRegistry, store: registry.Store, name: registry.Name) -> None:
    """The registry has the manifest and every blob, byte for byte."""
    manifest = store.manifest(name)
    repository = f"{name.namespace}/{name.model}"
    assert docker.get(f"{repository}/manifests/{name.tag}") == manifest.raw
    for digest in manifest.digests:
        assert digest_of(docker.get(f"{repository}/blobs/{digest}")) == digest


def test_push_and_push_again(docker: DockerRegistry, store: registry.Store, tmp_path: Path) -> None:
    name = registry.parse_name(f"http://{docker.host}/me/tiny:1b")
    put(store, name, [("model", os.urandom(5 << 20)), ("template", b"{{ .Prompt }}"), ("license", b"")])
    access = Access(insecure=True)
    assert [event.status for event in push(name, store, access=access)][-1] == "success"
    check_same(docker, store, name)
    n_patches = docker.log.count('"PATCH ')
    assert n_patches
    assert [event.status for event in push(name, store, access=access)][-1] == "success"
    assert docker.log.count('"PATCH ') == n_patches
    second = registry.parse_name(f"http://{docker.host}/you/second")
    store.copy(name, second)
    assert [event.status for event in push(second, store, access=access)][-1] == "success"
    assert docker.log.count('"PATCH ') == n_patches, "it should have been mounted"
    check_same(docker, store, second)


def test_kills_at_ten_moments(
    docker: DockerRegistry, store: registry.Store, tmp_path: Path, child_environment: dict[str, str],
    fixtures_dir: Path,
) -> None:  # fmt: skip
    name = registry.parse_name(f"http://{docker.host}/me/tiny")
    put(store, name, [("model", os.urandom(48 << 20)), ("projector", os.urandom(8 << 20))])
    script = str(fixtures_dir / "registry/push_child.py")
    command = [sys.executable, script, str(store.root), str(name), str(tmp_path / "uploads"), str(4 << 20)]
    moments = random.Random(7)
    for _ in range(10):
        child = subprocess.Popen(command, env=child_environment, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moments.uniform(0, 0.4))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        if docker.has_tag("me/tiny", "latest"):
            check_same(docker, store, name)  # killed after all was there
    ended = subprocess.run(command, env=child_environment, capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "success 0", ended.stderr
    check_same(docker, store, name)
    assert not list((tmp_path / "uploads").glob("*.json"))


def test_two_pushes_at_once(
    docker: DockerRegistry, store: registry.Store, tmp_path: Path, child_environment: dict[str, str],
    fixtures_dir: Path,
) -> None:  # fmt: skip
    name = registry.parse_name(f"http://{docker.host}/me/tiny")
    put(store, name, [("model", os.urandom(24 << 20))])
    script = str(fixtures_dir / "registry/push_child.py")
    command = [sys.executable, script, str(store.root), str(name), str(tmp_path / "uploads"), str(4 << 20)]
    children = [subprocess.Popen(command, env=child_environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for child in children:
        assert child.communicate(timeout=60)[0].splitlines()[-1] == "success 0"
    check_same(docker, store, name)
    assert docker.log.count('"PATCH ') == 7, "each part, and the config, goes once"

"""Pulls through the daemon: damage that is noticed and repaired, clients that go away, daemons that start again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.integration
CHUNK = 100_000
SIZE = 8_000_000


@pytest.fixture
def registry(registry_double: ModuleType) -> Iterator[Any]:
    """A registry of no models yet."""
    server = registry_double.RegistryDouble()
    yield server
    server.stop()


@pytest.fixture
def weights(tiny_models: ModuleType, tmp_path: Path) -> bytes:
    tiny_models.random_model(tmp_path / "m.gguf")
    return (tmp_path / "m.gguf").read_bytes()


def gets(registry: Any, content: bytes) -> int:
    """How often the blob was asked for."""
    digest = next(digest for digest, blob in registry.blobs.items() if blob == content)
    return len(registry.gets(digest))


def test_a_damaged_blob_is_an_error_and_a_pull_repairs_it(
    start_server: Callable[..., Any], registry: Any, registry_double: ModuleType, weights: bytes
) -> None:
    registry.add("lib/tiny:latest", [(registry_double.MODEL, weights)])
    server = start_server()
    model = {"model": f"http://{registry.host}/lib/tiny", "insecure": True}
    generate = {"model": f"{registry.host}/lib/tiny", "prompt": "x", "raw": True, "options": {"num_predict": 2}}
    assert server.post("/api/pull", model) == {"status": "success"}
    server.post("/api/generate", generate)
    server.unload_all()
    (blob,) = (path for path in (server.models / "blobs").glob("sha256-*") if path.stat().st_size == len(weights))
    blob.write_bytes(bytes(len(weights)))

    assert blob.name in server.refused("/api/generate", generate, 500)
    n_before = gets(registry, weights)
    assert server.post("/api/pull", model) == {"status": "success"}
    assert gets(registry, weights) > n_before and blob.read_bytes() == weights
    server.post("/api/generate", generate)


def test_a_model_that_lacks_a_blob_hides_no_other(
    start_server: Callable[..., Any], registry: Any, registry_double: ModuleType, weights: bytes
) -> None:
    for name, content in (("good", weights), ("bad", weights + bytes(32))):
        registry.add(f"lib/{name}:latest", [(registry_double.MODEL, content)])
    server = start_server()
    for name in ("good", "bad"):
        server.post("/api/pull", {"model": f"http://{registry.host}/lib/{name}", "insecure": True})
    (blob,) = (path for path in (server.models / "blobs").glob("sha256-*") if path.stat().st_size == len(weights) + 32)
    blob.unlink()
    bad = f"{registry.host}/lib/bad:latest"
    assert f"{registry.host}/lib/good:latest" in server.names()
    assert "not found" in server.refused("/api/show", {"model": bad}, 404)
    assert server.http.request("DELETE", "/api/delete", json={"model": bad}).status_code == 200
    assert server.names() == [f"{registry.host}/lib/good:latest"]


@pytest.mark.parametrize("noprune", ["", "1"])
def test_what_a_client_left_goes_with_the_next_start(
    start_server: Callable[..., Any], registry: Any, registry_double: ModuleType, noprune: str
) -> None:
    registry.add("lib/big:latest", [(registry_double.MODEL, bytes(SIZE))])
    registry.faults.append(_slowly)
    server = start_server(noprune=noprune)
    body = {"model": f"http://{registry.host}/lib/big", "insecure": True}
    with server.http.stream("POST", "/api/pull", json=body) as response:
        for line in response.iter_lines():
            if '"completed"' in line:
                break
    _wait_until(lambda: "partial" in " ".join(server.blobs()))
    assert server.names() == []
    server.stop()

    again = start_server(models=server.models, noprune=noprune)
    if noprune:
        assert "partial" in " ".join(again.blobs())
    else:  # beside the first requests
        _wait_until(lambda: "partial" not in " ".join(again.blobs()))
    registry.faults.clear()
    assert again.post("/api/pull", body) == {"status": "success"}
    assert "partial" not in " ".join(again.blobs()) and len(again.names()) == 1


def _slowly(request: Any, content: bytes) -> bool:
    """Answers with a part now and then, for as long as anybody listens."""
    if len(content) != SIZE:
        return False
    request.send_response(200)
    request.send_header("Content-Length", str(SIZE))
    request.end_headers()
    for start in range(0, SIZE, CHUNK):
        request.wfile.write(content[start : start + CHUNK])
        time.sleep(0.05)
    return True


def _wait_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)

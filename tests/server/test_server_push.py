"""POST /api/push and `localllm push`: to a registry on the loopback interface."""

import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import httpx
import ollama
import pytest

from localllm.cli.app import run
from registry.store import Store

Running = Callable[..., Any]
Start = Callable[..., Any]


@pytest.fixture
def double(upload_double: ModuleType) -> Iterator[Any]:
    made = upload_double.UploadDouble()
    yield made
    made.stop()


@pytest.mark.anyio
async def test_a_push(running: Running, add_model: Any, double: Any) -> None:
    name = f"http://{double.host}/me/m:1b"
    add_model(name)
    async with running() as r:
        for stream in (True, False):
            body = {"model": name, "insecure": True, "stream": stream}
            response = await r.post("/api/push", body)
            assert response.status_code == 200
            lines = response.text.splitlines()
            assert lines[-1] == '{"status":"success"}' and (len(lines) > 4) is stream
        assert list(double.manifests) == ["me/m:1b"]
        refused = await r.post("/api/push", {**body, "insecure": False})
        assert refused.status_code == 500 and refused.json()["error"] == "insecure protocol http"


@pytest.mark.anyio
async def test_name_and_password(running: Running, add_model: Any, upload_double: ModuleType) -> None:
    double = upload_double.UploadDouble("basic")
    try:
        name = f"http://{double.host}/me/m"
        add_model(name)
        body = {"model": name, "insecure": True, "stream": False}
        async with running() as r:
            assert (await r.post("/api/push", body)).status_code == 403
            good = await r.post("/api/push", {**body, "username": "ann", "password": "secret"})
            assert good.json() == {"status": "success"}
    finally:
        double.stop()


def test_a_client_that_leaves_ends_the_push(start_live: Start, add_model: Any, double: Any, store: Store) -> None:
    name = f"http://{double.host}/me/m"
    add_model(name)
    double.patch_faults = [lambda request, session: bool(time.sleep(1))] * 10
    daemon = start_live()
    body = {"model": name, "insecure": True}
    with httpx.stream("POST", f"{daemon.url}/api/push", json=body, timeout=20, trust_env=False) as response:
        next(response.iter_lines())
    status, log = daemon.stop()
    assert status == 0 and "client disconnected" in log and not double.manifests


def test_ollamas_client(start_live: Start, add_model: Any, double: Any) -> None:
    name = f"http://{double.host}/me/m"
    add_model(name)
    client = ollama.Client(start_live().url)
    try:
        assert client.push(name, insecure=True).status == "success"
        statuses = [part.status for part in client.push(name, insecure=True, stream=True)]
        assert statuses[0] == "retrieving manifest" and statuses[-1] == "success"
    finally:
        client._client.close()


def test_the_command(
    start_live: Start, add_model: Any, double: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    name = f"http://{double.host}/me/m"
    add_model(name)
    daemon = start_live()
    monkeypatch.setenv("LOCALLLM_HOST", daemon.url)
    assert run(["push", name, "--insecure"]) == 0
    out, err = capfd.readouterr()
    assert out == f"\nYou can find your model at:\n\n\t{name}:latest\n"
    assert err.startswith("retrieving manifest\npushing ") and err.endswith("\npushing manifest\nsuccess\n")
    assert run(["push", "nobody/has-it"]) == 1
    assert "Error: model 'nobody/has-it:latest' not found" in capfd.readouterr().err
    assert run(["push", "a/b/c/d"]) == 1
    assert "Error: invalid model name" in capfd.readouterr().err

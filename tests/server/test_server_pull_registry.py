"""/api/pull from a registry: what a request allows and says, and what is left when its client goes away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localllm.server.pull import inspect
from registry.catalog import Catalog
from registry.progress import Progress
from registry.pull import pull
from registry.remote import Access
from registry.store import Store

pytestmark = pytest.mark.anyio
SIZE = 4_000_000


@pytest.fixture
def start(registry_double: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start a registry with `lib/tiny`."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    running = []

    def begin(**options: Any) -> Any:
        server = registry_double.RegistryDouble(**options)
        server.add("lib/tiny:latest", [(registry_double.MODEL, bytes(SIZE))])
        running.append(server)
        return server

    yield begin
    for server in running:
        server.stop()


def real_pull(store: Store) -> Any:
    """What the daemon does with a reference."""

    def work(reference: str, cancel: threading.Event, access: Access) -> Iterator[Progress]:
        return pull(reference, store, inspect=inspect, catalog=Catalog({}), cancel=cancel, access=access)

    return work


async def test_insecure_and_credentials(start: Callable[..., Any], running: Any, store: Store, tmp_path: Path) -> None:
    server = start(auth="basic")
    model = f"http://{server.host}/lib/tiny"
    async with running(pull=real_pull(store), state_dir=tmp_path / "state") as r:
        response = await r.post("/api/pull", {"model": model})
        assert (response.status_code, response.json()["error"]) == (500, "insecure protocol http")
        records = await r.lines("/api/pull", {"model": model, "insecure": True})
        assert records[0] == {"status": "pulling manifest"}
        assert records[1]["error"].startswith("pull model manifest: 401: authentication required")
        body = {"model": model, "insecure": True, "username": "ann", "password": "secret"}
        assert (await r.lines("/api/pull", body))[-1] == {"status": "success"}


async def test_a_model_that_is_not_there(start: Callable[..., Any], running: Any, store: Store) -> None:
    body = {"model": f"http://{start().host}/lib/none", "insecure": True}
    async with running(pull=real_pull(store)) as r:
        records = await r.lines("/api/pull", body)
        assert records[0] == {"status": "pulling manifest"}
        assert records[1]["error"] == "pull model manifest: file does not exist"
        response = await r.post("/api/pull", {**body, "stream": False})
        assert (response.status_code, response.json()["error"]) == (500, "pull model manifest: file does not exist")

"""One store offers, another pulls from it: by our own client, against our own read-only registry with a token."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import registry
from registry.remote import Access, Credentials
from registry.serve import create_app

TOKEN = "correct-horse-battery"
WEIGHTS = b"GGUF" + os.urandom(3_000_000)


@pytest.fixture
def offered(store: registry.Store) -> Iterator[str]:
    """Where the store is offered."""
    server = uvicorn.Server(uvicorn.Config(create_app(store, TOKEN), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def test_a_second_machine_pulls(
    offered: str,
    store: registry.Store,
    put_model: Callable[..., bytes],
    facts: registry.ModelFacts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    raw = put_model("tiny:1b", [("model", WEIGHTS), ("template", b"{{ .Prompt }}"), ("license", b"")])
    second = registry.Store(tmp_path / "second")
    reference = f"http://{offered}/library/tiny:1b"

    def pull(access: Access) -> list[Any]:
        catalog = registry.Catalog({})
        return [*registry.pull(reference, second, inspect=lambda _: facts, catalog=catalog, access=access)]

    with pytest.raises(registry.RegistryError, match="401"):
        pull(Access(insecure=True))
    assert pull(Access(insecure=True, credentials=Credentials("", TOKEN)))[-1].status == "success"
    (tmp_path / "docker").mkdir()
    entry = {"username": "anyone", "password": TOKEN}
    (tmp_path / "docker/config.json").write_text(json.dumps({"auths": {offered: entry}}))
    assert pull(Access(insecure=True))[-1].status == "success"
    name = registry.parse_name(reference)
    assert second.manifest(name).raw == raw
    for digest in second.manifest(name).digests:
        assert second.blobs.read(digest, 1 << 30) == store.blobs.read(digest, 1 << 30)

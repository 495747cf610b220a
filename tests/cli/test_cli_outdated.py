"""`pull --all` and `list --outdated`: models are compared with their registries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GONE = "127.0.0.1:9/lib/far:latest"


@pytest.fixture
def server(registry_double: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A registry with three models."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    running = registry_double.RegistryDouble()
    for model in ("new", "same", "other"):
        running.add(f"lib/{model}:latest", [(registry_double.MODEL, model.encode())])
    yield running
    running.stop()


@pytest.fixture
def stored(server: Any, daemon: Any) -> Callable[..., None]:
    """stored(new="…"): what the daemon has, by the digest of each model's manifest ("same": the registry's)."""

    def put(*extra: str, **digests: str) -> None:
        models = [{"name": name, "digest": "0" * 64} for name in extra]
        for model, digest in digests.items():
            real = hashlib.sha256(server.manifests.get(f"lib/{model}:latest", b"")).hexdigest()
            name = f"{server.host}/lib/{model}:latest"
            models.append({"name": name, "digest": real if digest == "same" else digest})
        daemon.replies["/api/tags"] = (200, [{"models": models}])

    return put


def test_list_outdated(server: Any, stored: Callable[..., None], cli: Any) -> None:
    stored(GONE, "smollm2:135m", new="0" * 64, same="same", mine="0" * 64)
    result = cli("list", "--outdated", "--insecure")
    rows = [line.split("  ") for line in result.out.splitlines()]
    rows = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert rows[0] == ["NAME", "STATE", "REASON"]
    assert rows[1][:2] == [GONE, "cannot be told"]
    assert rows[1][2].startswith("pull model manifest: cannot reach 127.0.0.1:9: ")
    assert rows[2:] == [[f"{server.host}/lib/new:latest", "outdated"]]
    assert result.code == 0


def test_list_outdated_of_some(server: Any, stored: Callable[..., None], cli: Any) -> None:
    stored(GONE, new="0" * 64)
    assert "127.0.0.1:9" not in cli("list", "--outdated", "--insecure", server.host.upper()).out


def test_pull_all(server: Any, stored: Callable[..., None], daemon: Any, cli: Any) -> None:
    stored(new="0" * 64, same="same", other="1" * 64, mine="0" * 64)
    daemon.replies["/api/pull"] = (200, [{"status": "success"}])
    assert cli("pull", "--all", "--insecure").code == 0
    asked = [body["model"] for body in daemon.bodies("/api/pull")]
    assert asked == [f"http://{server.host}/lib/{model}:latest" for model in ("new", "other")]


def test_pull_all_goes_on_after_failures(server: Any, stored: Callable[..., None], daemon: Any, cli: Any) -> None:
    stored(GONE, new="0" * 64, other="0" * 64)

    def reply(body: Any) -> Any:
        return 200, [{"error": "no"} if "new" in body["model"] else {"status": "success"}]

    daemon.replies["/api/pull"] = reply
    result = cli("pull", "--all", "--insecure")
    assert result.code == 1
    assert len(daemon.bodies("/api/pull")) == 2
    assert f"{GONE}: pull model manifest: cannot reach 127.0.0.1:9" in result.err
    assert f"{server.host}/lib/new:latest: no" in result.err
    assert "Error: 2 of the models could not be brought up to date" in result.err


def test_pull_all_takes_no_name(daemon: Any, cli: Any) -> None:
    assert "accepts 0 arg(s), received 1" in cli("pull", "--all", "m").err

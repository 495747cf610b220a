"""API keys: files of hashes, what a daemon accepts, and how each dialect says no."""

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localllm import keys
from localllm.errors import SettingError
from localllm.keys import Keyring, add_key, read_keys, remove_key

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at again at each request."""
    monkeypatch.setattr(keys, "RELOAD_INTERVAL_S", 0.0)


def test_a_file_holds_hashes_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keys.json"
    key, other = add_key(path, "laptop"), add_key(path, "phone")
    assert key != other and len(key) > 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key not in path.read_text() and key.removeprefix(keys.KEY_PREFIX) not in path.read_text()
    assert [stored.name for stored in read_keys(path)] == ["laptop", "phone"]
    ring = Keyring(files=[path])
    assert ring.accepts(key) and ring.accepts(other) and not ring.accepts(key[:-1]) and not ring.accepts("")


def test_names_are_unique_and_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add_key(path, "a")
    with pytest.raises(SettingError, match='"a" exists'):
        add_key(path, "a")
    with pytest.raises(SettingError, match='no key is named "b"'):
        remove_key(path, "b")
    assert remove_key(path, "a") == []


@pytest.mark.parametrize("text", ["plain-secret\n", "[]", '{"keys": [{"name": "x"}]}', '{"keys": [1]}', "\xff"])
def test_a_file_of_something_else_is_refused_unquoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingError) as caught:
        read_keys(path)
    assert str(path) in str(caught.value) and "plain-secret" not in str(caught.value)


def test_a_ring_without_keys_asks_for_none(tmp_path: Path) -> None:
    assert not Keyring().is_required and not Keyring(files=[tmp_path / "keys.json"]).is_required
    assert Keyring(["k"]).is_required and Keyring(["k"]).accepts("k")


def test_changes_count_at_once_but_never_open_the_door(tmp_path: Path, at_once: None) -> None:
    path = tmp_path / "keys.json"
    ring = Keyring(files=[path])
    assert not ring.is_required
    first = add_key(path, "a")
    assert ring.is_required and ring.accepts(first)
    second = add_key(path, "b")
    remove_key(path, "a")
    assert ring.accepts(second) and not ring.accepts(first)
    path.write_text("damaged")
    assert ring.is_required and ring.accepts(second)
    path.unlink()
    assert ring.is_required and not ring.accepts(second)


async def test_what_needs_a_key(running: Running) -> None:
    async with running(keys=Keyring(["secret"])) as r:
        for method, path in (("GET", "/"), ("HEAD", "/"), ("OPTIONS", "/api/chat")):
            assert (await r.http.request(method, path)).status_code in (200, 204)
        for method, path in (("GET", "/api/tags"), ("POST", "/api/chat"), ("GET", "/docs"), ("GET", "/nope")):
            response = await r.http.request(method, path)
            assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"] == "missing API key"
        for headers in (
            {"Authorization": "Bearer secret"},
            {"authorization": "bearer  secret "},
            {"X-API-Key": "secret"},
            {"Authorization": "Bearer other", "x-api-key": "secret"},
        ):
            assert (await r.http.get("/api/tags", headers=headers)).status_code == 200
        for headers in (
            {"Authorization": "Bearer secre"},
            {"Authorization": "Basic secret"},
            {"Authorization": "secret"},
            {"x-api-key": b"\xff"},
        ):
            assert (await r.http.get("/api/tags", headers=headers)).status_code == 401
        assert (await r.http.get("/api/tags", params={"api_key": "secret"})).status_code == 401


async def test_a_web_page_may_read_the_refusal(running: Running) -> None:
    async with running(keys=Keyring(["secret"])) as r:
        response = await r.http.get("/api/tags", headers={"Origin": "http://localhost:3000"})
        assert response.status_code == 401
        assert response.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_keys_of_the_environment_and_of_a_file(start_live: Callable[..., Any], tmp_path: Path) -> None:
    import httpx

    path = tmp_path / "team.json"
    filed = add_key(path, "team")
    daemon = start_live(LOCALLLM_API_KEYS=f"one, @{path} ,two", LOCALLLM_DEBUG="1")
    with httpx.Client(base_url=daemon.url, trust_env=False) as http:
        statuses = [
            http.get("/api/tags", headers={"x-api-key": key}).status_code for key in ("one", "two", filed, "three")
        ]
        assert statuses == [200, 200, 200, 401]
        added = add_key(tmp_path / "state" / "keys.json", "late")
        deadline = time.monotonic() + 10
        while http.get("/api/tags", headers={"x-api-key": added}).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        import psutil

        for child in psutil.Process(daemon.process.pid).children(recursive=True):
            assert "LOCALLLM_API_KEYS" not in child.environ()
    log = daemon.stop()[1]
    assert not any(key in log for key in ("two", filed, "three", added))


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from localllm.cli.app import run

    monkeypatch.setenv("LOCALLLM_STATE_DIR", str(tmp_path))
    assert run(["keys", "add", "laptop"]) == 0
    key = capsys.readouterr().out.strip()
    assert Keyring(files=[tmp_path / "keys.json"]).accepts(key)
    assert run(["keys"]) == 0 and "laptop" in capsys.readouterr().out
    assert run(["keys", "rm", "laptop"]) == 0 and "No key is left" in capsys.readouterr().err
    assert run(["keys", "rm", "laptop"]) == 1 and run(["keys", "add"]) == 1 and run(["keys", "make"]) == 1
    assert run(["keys", "add", "x", "--file", str(tmp_path / "other.json")]) == 0
    assert json.loads((tmp_path / "other.json").read_text())["keys"][0]["name"] == "x"
    assert os.listdir(tmp_path) and "localllm keys list" in capsys.readouterr().err


async def test_the_client_sends_its_key(
    start_live: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from localllm.client import Client, ClientError

    daemon = start_live(LOCALLLM_API_KEYS="secret")
    monkeypatch.setenv("OLLAMA_API_KEY", "secret")
    with Client(daemon.url) as client:
        assert client.tags() == []
    monkeypatch.setenv("LOCALLLM_API_KEY", "wrong")
    with Client(daemon.url) as client:
        assert client.is_alive()
        with pytest.raises(ClientError, match="invalid API key") as caught:
            client.tags()
        assert caught.value.status == 401 and "LOCALLLM_API_KEY" in (caught.value.hint or "")

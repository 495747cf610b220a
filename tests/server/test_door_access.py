"""What browsers ask before a request, and what the log says of a daemon that is open to others."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from localllm.keys import Keyring
from localllm.server.daemon import Settings
from localllm.server.process import warn_if_open

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 204),
        ("app://obsidian.md", 204),
        ("tauri://localhost", 204),
        ("vscode-webview://1abc", 204),
        ("chrome-extension://abcdef", 204),
        ("https://a.example.org", 204),
        ("https://example.org", 403),
        ("moz-extension://abcdef", 403),
        ("null", 403),
    ],
)
async def test_preflights(running: Running, origin: str, status: int) -> None:
    allowed = ("chrome-extension://*", "https://*.example.org")
    async with running(origins=allowed, keys=Keyring(["secret"])) as r:
        asked = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, anthropic-version, x-api-key",
            "Access-Control-Request-Private-Network": "true",
        }
        response = await r.http.options("/v1/messages", headers=asked)
        assert response.status_code == status and response.content == b""
        assert response.headers.get("access-control-allow-origin") == (origin if status == 204 else None)
        assert response.headers.get("access-control-allow-private-network") == ("true" if status == 204 else None)
        if status == 204:
            may = {name.strip().lower() for name in response.headers["access-control-allow-headers"].split(",")}
            assert {"authorization", "content-type", "anthropic-version", "x-api-key", "x-stainless-os"} <= may


async def test_a_refused_origin_reaches_no_endpoint(running: Running, add_model: Callable[..., None]) -> None:
    add_model()
    async with running() as r:
        headers = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
        response = await r.http.request("DELETE", "/api/delete", content=b'{"model":"m"}', headers=headers)
        assert (response.status_code, response.content) == (403, b"")
        assert [model["name"] for model in (await r.http.get("/api/tags")).json()["models"]] == ["m:latest"]


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (Settings(is_loopback=True), False),
        (Settings(is_loopback=False), True),
        (Settings(is_loopback=False, keys=Keyring(["secret"])), False),
    ],
)
def test_an_open_daemon_says_so(settings: Settings, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_open(settings, "0.0.0.0")
    assert ("localllm keys add" in caplog.text) is warned

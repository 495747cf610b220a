"""Host and Origin rules: who may call a daemon that listens on loopback, and which web pages may."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from localllm.server.access import AccessMiddleware, is_local_host, is_loopback_address

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]


@pytest.mark.parametrize(
    "host",
    [
        *("", "localhost", "localhost:11434", "LOCALHOST", "127.0.0.1:80", "127.8.8.8", "[::1]:11434", "0.0.0.0"),
        *("10.1.2.3", "192.168.1.5:11434", "my.localhost", "box.local", "host.docker.internal:11434"),
        socket.gethostname(),
    ],
)
def test_local_hosts(host: str) -> None:
    assert is_local_host(host)


@pytest.mark.parametrize(
    "host", ["example.com", "evil.com:11434", "8.8.8.8", "localhost.evil.com", "[2001:4860::1]", "[x"]
)
def test_foreign_hosts(host: str) -> None:
    assert not is_local_host(host)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("box", False)],
)
def test_loopback_addresses(address: str, loopback: bool) -> None:
    assert is_loopback_address(address) is loopback


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("https://localhost:3000", True),
        ("http://127.0.0.1:8080", True),
        ("http://0.0.0.0:1", True),
        ("app://obsidian.md", True),
        ("vscode-webview://abc", True),
        ("tauri://localhost", True),
        ("file://", True),
        ("http://evil.com", False),
        ("http://localhost.evil.com", False),
        ("null", False),
        ("chrome-extension://abc", False),
        ("https://chat.example.org", True),
        ("https://a.example.net", True),
        ("https://example.net.evil.com", False),
    ],
)
def test_origins(origin: str, allowed: bool) -> None:
    middleware = AccessMiddleware(
        lambda *_: None,  # type: ignore[arg-type,return-value]
        is_loopback=True,
        origins=["https://chat.example.org", "https://*.example.net"],
    )
    assert middleware.allows_origin(origin) is allowed


def test_a_star_allows_every_origin() -> None:
    middleware = AccessMiddleware(lambda *_: None, is_loopback=True, origins=["*"])  # type: ignore[arg-type,return-value]
    assert middleware.allows_origin("https://anything")


async def test_a_foreign_host_is_refused_on_loopback_only(running: Running) -> None:
    foreign = {"Host": "evil.com"}
    async with running() as r:
        response = await r.http.get("/api/tags", headers=foreign)
        assert (response.status_code, response.content) == (403, b"")
    async with running(is_loopback=False) as r:
        assert (await r.http.get("/api/tags", headers=foreign)).status_code == 200


async def test_cross_origin_requests(running: Running) -> None:
    async with running(origins=("https://chat.example.org",)) as r:
        response = await r.http.get("/api/tags", headers={"Origin": "http://evil.com"})
        assert (response.status_code, response.content) == (403, b"")
        response = await r.http.get("/api/tags", headers={"Origin": "https://chat.example.org"})
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://chat.example.org"
        assert response.headers["vary"] == "Origin"
        same = {"Origin": "http://box.local:11434", "Host": "box.local:11434"}
        response = await r.http.get("/api/tags", headers=same)
        assert response.status_code == 200 and "access-control-allow-origin" not in response.headers
        response = await r.http.post("/nope", headers={"Origin": "http://localhost:3000"})
        assert response.headers["access-control-allow-origin"] == "http://localhost:3000"


async def test_preflight(running: Running) -> None:
    async with running() as r:
        asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
        response = await r.http.options("/api/chat", headers=asked)
        assert response.status_code == 204 and "POST" in response.headers["access-control-allow-methods"]
        assert "Authorization" in response.headers["access-control-allow-headers"]
        assert (await r.http.options("/api/chat")).status_code == 204
        assert (await r.http.options("/api/chat", headers={"Origin": "http://evil.com"})).status_code == 403

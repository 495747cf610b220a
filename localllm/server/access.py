"""Who may call: the Host header (against DNS rebinding) and the Origin header (against other web pages).

It knows no endpoint. A refusal is a 403 without a body, as from Ollama.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

import psutil
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localllm.server.truncation import HEADER

LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0")
DEFAULT_ORIGINS = (
    *(f"{scheme}://{host}{port}" for host in LOCAL_HOSTS for scheme in ("http", "https") for port in ("", ":*")),
    *("app://*", "file://*", "tauri://*", "vscode-webview://*", "vscode-file://*"),
)
LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
ALLOWED_METHODS = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
ALLOWED_HEADERS = (
    *("Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "OpenAI-Beta"),
    *(f"x-stainless-{name}" for name in ("arch", "async", "custom-poll-interval", "helper-method", "lang", "os")),
    *(f"x-stainless-{name}" for name in ("package-version", "poll-helper", "retry-count", "runtime")),
    *("x-stainless-runtime-version", "x-stainless-timeout", "x-api-key"),
    *("anthropic-version", "anthropic-beta", "anthropic-dangerous-direct-browser-access"),
)
PREFLIGHT_MAX_AGE_S = 43200


class AccessMiddleware:
    """Refuses a request whose Host or Origin is not allowed, and answers preflights.

    `is_loopback`: whether the daemon listens on loopback only; the Host is checked only then. `origins`: patterns
    allowed beside DEFAULT_ORIGINS, `*` matches anything.
    """

    def __init__(self, app: ASGIApp, *, is_loopback: bool, origins: Iterable[str] = ()) -> None:
        self._app = app
        self._is_loopback = is_loopback
        self._origins = [_pattern(origin) for origin in (*DEFAULT_ORIGINS, *origins)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        host = headers.get("host", "")
        crosses = bool(origin) and not _same_host(origin, host)
        if (self._is_loopback and not is_local_host(host)) or (crosses and not self.allows_origin(origin)):
            await Response(status_code=403)(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=_preflight_headers(origin, headers))(scope, receive, send)
        else:
            await self._app(scope, receive, _with_origin(send, origin) if crosses else send)

    def allows_origin(self, origin: str) -> bool:
        """Whether pages of this origin may call."""
        return any(pattern.fullmatch(origin.lower()) for pattern in self._origins)


def _pattern(origin: str) -> "re.Pattern[str]":
    return re.compile(".*".join(re.escape(part) for part in origin.lower().rstrip("/").split("*")))


def _same_host(origin: str, host: str) -> bool:
    return origin in (f"http://{host}", f"https://{host}")


def _preflight_headers(origin: str, headers: Headers) -> dict[str, str]:
    if not origin:
        return {}
    # A page from the internet asks whether it may reach into this network.
    is_private = headers.get("access-control-request-private-network") == "true"
    return {
        **({"Access-Control-Allow-Private-Network": "true"} if is_private else {}),
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": ALLOWED_METHODS,
        "Access-Control-Allow-Headers": ", ".join(ALLOWED_HEADERS),
        "Access-Control-Max-Age": str(PREFLIGHT_MAX_AGE_S),
        "Vary": "Origin",
    }


def _with_origin(send: Send, origin: str) -> Send:
    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = HEADER
            headers.add_vary_header("Origin")
        await send(message)

    return send_with_origin


def is_local_host(host_header: str) -> bool:
    """Whether a Host header names this machine: a local name, or an address that is private or its own."""
    try:
        host = (urlsplit(f"//{host_header}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if host in ("", "localhost") or host.endswith(LOCAL_SUFFIXES) or host == socket.gethostname().lower():
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_unspecified or host in _own_addresses()


def _own_addresses() -> set[str]:
    addresses = (address.address for interface in psutil.net_if_addrs().values() for address in interface)
    return {address.partition("%")[0].lower() for address in addresses}


def is_from_here(request: Request) -> bool:
    """Whether the client is on this machine, and not one elsewhere whose request a proxy here passes on.

    One without an address came by a socket of this machine's own.
    """
    is_local = request.client is None or is_loopback_address(request.client.host)
    return is_local and not any(name in request.headers for name in ("forwarded", "x-forwarded-for"))


def is_loopback_address(host: str) -> bool:
    """Whether listening on `host` means listening to this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

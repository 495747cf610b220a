"""Who may call where the daemon has API keys: requests that bring one of them. It knows no endpoint but the root's.

Whether a daemon is there (`GET /`), and what a browser asks before a request (OPTIONS), needs no key.
"""

from collections.abc import Iterator

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from localllm.keys import Keyring
from localllm.server.daemon import DAEMON_KEY
from localllm.server.errors import APIError, Refusals, refusal

HINT = "send a key as `Authorization: Bearer KEY` or `x-api-key: KEY`; the commands send LOCALLLM_API_KEY"


class KeyMiddleware:
    """Answers 401, as the path's dialect tells errors, to a request without a key of the ring."""

    def __init__(self, app: ASGIApp, *, keys: Keyring, refusals: Refusals) -> None:
        self._app = app
        self._keys = keys
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http" or _is_open(scope) or not self._keys.is_required:
            await self._app(scope, receive, send)
            return
        sent = list(_keys_of(Headers(scope=scope)))
        if any(self._keys.accepts(key) for key in sent):
            await self._app(scope, receive, send)
            return
        error = APIError(401, "invalid API key" if sent else "missing API key", hint=HINT)
        response = refusal(self._refusals, scope["path"])(error)
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)


def _is_open(scope: Scope) -> bool:
    """A request of the daemon itself, which no client can make, or one that tells nothing."""
    is_root = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
    return DAEMON_KEY in scope or is_root or scope["method"] == "OPTIONS"


def _keys_of(headers: Headers) -> Iterator[str]:
    for value in headers.getlist("authorization"):
        scheme, _, key = value.strip().partition(" ")
        if scheme.lower() == "bearer" and key.strip():
            yield key.strip()
    yield from filter(None, map(str.strip, headers.getlist("x-api-key")))

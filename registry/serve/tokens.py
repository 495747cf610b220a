"""The token that clients of an offered store must send, and where it is kept; it knows nothing of what it protects.

It is taken as `Authorization: Bearer TOKEN` and, since that is what clients of registries can be told, as the password
of `Basic`, whatever the user.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_BYTES = 32
MIN_TOKEN_LENGTH = 16
CHALLENGE = 'Basic realm="localllm", charset="UTF-8"'


class TokenMiddleware:
    """Passes requests on that carry the token, and answers the others with `refuse()` and a challenge."""

    def __init__(self, app: ASGIApp, *, token: str, refuse: Callable[[], Response]) -> None:
        self._app = app
        self._digest = _digest(token)
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http" or self._fits(Headers(scope=scope).get("authorization", "")):
            await self._app(scope, receive, send)
            return
        response = self._refuse()
        response.headers["www-authenticate"] = CHALLENGE
        await response(scope, receive, send)

    def _fits(self, authorization: str) -> bool:
        # Digests are compared: the time that takes tells neither the token nor its length.
        return hmac.compare_digest(_digest(_sent_token(authorization)), self._digest)


def read_or_make_token(path: Path) -> tuple[str, bool]:
    """The token in a file, made and readable by its owner alone where there is none; and whether it is new.

    Raises:
        ValueError: what is in the file is too short to be one.
        OSError: the file cannot be read or written.
    """
    with contextlib.suppress(FileNotFoundError):
        token = path.read_text(encoding="utf-8").strip()
        if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable():
            raise ValueError(f"{path} holds no token: expected at least {MIN_TOKEN_LENGTH} printable ASCII characters")
        return token, False
    token = secrets.token_urlsafe(TOKEN_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_or_make_token(path)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(token + "\n")
    return token, True


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _sent_token(authorization: str) -> str:
    """What a header carries as a token, "" for none."""
    scheme, _, value = authorization.strip().partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value, validate=True).decode("utf-8", "surrogateescape").partition(":")[2]
    return ""

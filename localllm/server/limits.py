"""How large a request's body may be, and how slowly it may come; it knows nothing of what is in it.

A client that sends a byte now and then would hold a connection for ever: its body must not pause for longer than a
client's time, and must come at MIN_BODY_RATE after that. The request's header is watched over by the connection
(localllm/server/connections.py).
"""

import asyncio
import math
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_BODY_RATE = 10_000
"""Bytes a second."""
UPLOAD_PATHS = ("/v1/files",)
"""What holds files and no JSON."""
MODEL_PATHS = ("/api/blobs/",)
"""What holds files of models: as large as the disk has room for, which the store checks."""


class BodyTooLargeError(ValueError):
    """The body is longer than it may be; what came after that was not read."""

    def __init__(self, limit: float) -> None:
        super().__init__(f"request body too large: the limit is {limit} bytes")
        self.limit = limit


class BodyTooSlowError(ValueError):
    """The body did not come in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"request body too slow: it paused for {timeout_s:g} s, or came at less than 10 kB/s")
        self.timeout_s = timeout_s


class LimitsMiddleware:
    """Raises, where an endpoint reads a body that is too large or too slow; endpoints need not know."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, max_upload_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its body watched."""
        if scope["type"] == "http":
            is_upload = scope["path"].startswith(UPLOAD_PATHS)
            limit: float = self._max_upload_bytes if is_upload else self._max_body_bytes
            limit = math.inf if scope["path"].startswith(MODEL_PATHS) else limit
            receive = _Body(scope, receive, limit, self._timeout_s).receive
        await self._app(scope, receive, send)


class _Body:
    def __init__(self, scope: Scope, receive: Receive, limit: float, timeout_s: float) -> None:
        length = Headers(scope=scope).get("content-length", "")
        self._n_announced = int(length) if length.isascii() and length.isdigit() else 0
        self._receive = receive
        self._limit = limit
        self._timeout_s = timeout_s
        self._started_s = time.monotonic()
        self._n_bytes = 0
        self._is_complete = False

    async def receive(self) -> Message:
        """The next part. Raises: BodyTooLargeError, BodyTooSlowError."""
        if self._is_complete:
            return await self._receive()
        if self._n_announced > self._limit:
            raise BodyTooLargeError(self._limit)
        message = await self._in_time()
        self._n_bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._n_bytes > self._limit:
            raise BodyTooLargeError(self._limit)
        return message

    async def _in_time(self) -> Message:
        left_s = self._started_s + self._timeout_s + self._n_bytes / MIN_BODY_RATE - time.monotonic()
        try:
            return await asyncio.wait_for(self._receive(), max(0.0, min(self._timeout_s, left_s)))
        except asyncio.TimeoutError:
            raise BodyTooSlowError(self._timeout_s) from None

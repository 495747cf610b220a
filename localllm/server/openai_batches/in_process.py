"""Requests that the daemon makes of its own application, without a socket; it knows nothing of what they ask."""

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message

from localllm.server.daemon import DAEMON_KEY, Daemon


async def post(app: ASGIApp, daemon: Daemon, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer, as a client would get them; `daemon` is what serves it.

    Whoever stops waiting for it cancels the request.
    """
    answer = _Answer(body)
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": None,
        "server": ("localhost", 0),
        DAEMON_KEY: daemon,
    }
    await app(scope, answer.receive, answer.send)
    return answer.status, bytes(answer.body)


class _Answer:
    def __init__(self, request_body: bytes) -> None:
        self._request_body: bytes | None = request_body
        self.status = 500
        self.body = bytearray()

    async def receive(self) -> Message:
        if self._request_body is None:
            await asyncio.Event().wait()  # this client never leaves
        body, self._request_body = self._request_body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

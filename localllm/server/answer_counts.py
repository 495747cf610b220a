"""Counts requests by their endpoint and the status of their answers; it knows nothing of what they ask."""

from collections import Counter
from collections.abc import Iterable

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localllm.server.daemon import DAEMON_KEY

OTHER = "other"
"""The endpoint of a path that none has, since anybody may make up paths."""
CANCELED = 499
"""The status of a request whose client left before it was answered."""

AnswerCounts = Counter[tuple[str, int]]
"""How many requests had an endpoint, as its route is written, and a status."""


class CountingMiddleware:
    """Adds each request of a client to `counts` once it has been answered, refused or given up."""

    def __init__(self, app: ASGIApp, *, counts: AnswerCounts, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._counts = counts
        self._routes = [route for route in routes if isinstance(route, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or DAEMON_KEY in scope:
            await self._app(scope, receive, send)
            return
        status = CANCELED

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        endpoint = self._endpoint(scope["path"])
        try:
            await self._app(scope, receive, watched)
        finally:
            self._counts[endpoint, status] += 1

    def _endpoint(self, path: str) -> str:
        return next((route.path for route in self._routes if route.path_regex.match(path)), OTHER)

"""Answers requests that failed in a way nobody foresaw; it knows no endpoint and not what can go wrong.

It stands inside of what adds headers for browsers, which Starlette's own handler of such errors does not: a page could
not read that answer.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localllm.server.errors import Refusals, refusal


class UnforeseenMiddleware:
    """Tells of an exception in the path's dialect; the refusal logs it. Once an answer has begun, it is raised."""

    def __init__(self, app: ASGIApp, *, refusals: Refusals) -> None:
        self._app = app
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if has_begun:
                raise
            await refusal(self._refusals, scope["path"])(error)(scope, receive, send)

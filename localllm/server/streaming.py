"""Sends a stream of records in some wire format or as one JSON object, and stops its source when the client goes away.

It knows nothing of what the records say. An error before the first record becomes a real status; after it, a last
record that says so. So a stream ends with its source's own last record or with an error, never in between.
"""

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localllm.server.errors import body_of, response_of

logger = logging.getLogger(__name__)

Record = dict[str, Any]
Records = AsyncGenerator[Record, None]
NDJSON = "application/x-ndjson"
JSON = "application/json; charset=utf-8"


def json_response(record: Record) -> Response:
    """A whole answer of one object."""
    return Response(encoded(record), media_type=JSON)


def last(records: list[Record]) -> Record:
    """What a not-streamed operation answers: its last progress record."""
    return records[-1]


def encoded(record: Any) -> bytes:
    """JSON without blanks; numbers that JSON has no word for, such as the logarithm of 0, are null."""
    try:
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(record), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _line(record: Record) -> bytes:
    return encoded(record) + b"\n"


@dataclass(frozen=True)
class Wire:
    """How a dialect streams: what a record is on the wire, what tells of an error (an answer of its own before the
    first record, something in the stream later), what ends a stream after its last record, and headers of its own."""

    media_type: str = NDJSON
    encode: Callable[[Record], bytes] = _line
    refuse: Callable[[Exception], Response] = response_of
    fail: Callable[[Exception], bytes] = lambda error: _line(body_of(error))
    end: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


OLLAMA = Wire()


class RecordsResponse(Response):
    """The answer made of `records`: streamed, or, with `stream` False, folded into one object by `fold`.

    `told` are further headers, as they are when the first record is there, or, not streamed, the last.
    """

    def __init__(
        self,
        records: Records,
        *,
        stream: bool,
        fold: Callable[[list[Record]], Record] = last,
        wire: Wire = OLLAMA,
        told: Mapping[str, str] | None = None,
    ) -> None:
        self.records = records
        self.stream = stream
        self.fold = fold
        self.wire = wire
        self.told = {} if told is None else told
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the source ends or the client disconnects, whichever is first."""
        work = asyncio.create_task(
            self._stream(scope, receive, send) if self.stream else self._whole(scope, receive, send)
        )
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                logger.info("%s: client disconnected, request canceled", scope["path"])
        finally:
            await _cancel(work)
            await _cancel(gone)
            await self.records.aclose()
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire = self.wire
        try:
            first = await anext(self.records)
        except Exception as error:
            await wire.refuse(error)(scope, receive, send)
            return
        headers = {"content-type": wire.media_type, "x-accel-buffering": "no", **wire.headers, **self.told}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await _send_more(send, wire.encode(first))
        try:
            async for record in self.records:
                await _send_more(send, wire.encode(record))
            end = wire.end
        except Exception as error:
            end = wire.fail(error)
        await send({"type": "http.response.body", "body": end})

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: Response
        try:
            records = [record async for record in self.records]
            response = json_response(self.fold(records))
            response.headers.update({**self.wire.headers, **self.told})
        except Exception as error:
            response = self.wire.refuse(error)
        await response(scope, receive, send)


def _finite(value: Any) -> Any:
    """The same with null for the numbers that JSON has no word for, such as the logarithm of 0."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


async def _send_more(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: "asyncio.Task[None]") -> None:
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

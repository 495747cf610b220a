"""Sends a blob, or the part of it that a Range asks for; it knows nothing of who may have it.

The file is open from before the first byte to the last: a blob that is removed meanwhile is sent to its end. A server
that can send files itself says so in the request's state; else threads read it, a chunk ahead of what the client takes,
so that neither a slow disk nor a slow client holds up others, and memory is two chunks a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

CHUNK_BYTES = 1 << 20
SENDFILE = "localllm.sendfile"
"""The key in the state: `await send_file(handle, first, n_bytes)` sends bytes of the body."""

_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")

SendFile = Callable[[int, int, int], Awaitable[None]]


class UnsatisfiableRangeError(ValueError):
    """A Range that begins after the end."""


class BlobResponse(Response):
    """A whole blob, or a part of it with status 206. `headers` are those of any blob's answer."""

    def __init__(self, path: Path, size: int, part: tuple[int, int] | None, headers: dict[str, str]) -> None:
        first, end = part or (0, size)
        super().__init__(status_code=206 if part else 200, headers=headers)
        self.headers["content-length"] = str(end - first)
        if part:
            self.headers["content-range"] = f"bytes {first}-{end - 1}/{size}"
        self._path = path
        self._first, self._end = first, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client goes away.

        Raises:
            OSError: the file cannot be opened, or is cut off meanwhile.
        """
        if scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)
            return
        handle = await run_in_threadpool(os.open, self._path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            send_file = scope.get("state", {}).get(SENDFILE)
            work = self._send(handle, send) if send_file is None else self._send_as_file(send_file, handle, send)
            await _unless_gone(work, receive)
        finally:
            os.close(handle)

    async def _send_as_file(self, send_file: SendFile, handle: int, send: Send) -> None:
        await send_file(handle, self._first, self._end - self._first)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, handle: int, send: Send) -> None:
        reading: asyncio.Task[tuple[int, bytes]] | None = self._read(handle, self._first)
        try:
            while reading is not None:
                position, chunk = await reading
                position += len(chunk)
                is_last = position >= self._end
                reading = None if is_last else self._read(handle, position)
                await send({"type": "http.response.body", "body": chunk, "more_body": not is_last})
        finally:
            # The handle must not be closed, and perhaps be another file's, while a thread still reads from it.
            if reading is not None:
                with contextlib.suppress(OSError):
                    await asyncio.shield(reading)

    def _read(self, handle: int, position: int) -> asyncio.Task[tuple[int, bytes]]:
        return asyncio.create_task(self._chunk(handle, position))

    async def _chunk(self, handle: int, position: int) -> tuple[int, bytes]:
        length = min(CHUNK_BYTES, self._end - position)
        chunk = await run_in_threadpool(_read_at, handle, position, length)
        if len(chunk) < min(length, 1):
            raise OSError(f"{self._path.name} ends at byte {position}")
        return position, chunk


def requested_part(headers: Headers, size: int, etag: str) -> tuple[int, int] | None:
    """(first byte, end) that Range asks for, None for the whole: without a Range, with several, or of another version.

    Raises:
        UnsatisfiableRangeError
    """
    match = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    if match is None or not (match["first"] or match["last"]) or headers.get("if-range", etag) != etag:
        return None
    if not match["first"]:
        first, end = max(0, size - int(match["last"])), size
    else:
        first, end = int(match["first"]), min(int(match["last"] or size) + 1, size)
        if match["last"] and int(match["last"]) < first:
            return None
    if first >= end:
        raise UnsatisfiableRangeError(f"bytes */{size}")
    return first, end


def _read_at(handle: int, position: int, length: int) -> bytes:
    os.lseek(handle, position, os.SEEK_SET)
    return os.read(handle, length)


async def _unless_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do the work, or give it up when the client disconnects."""
    sending = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, gone):
            if not task.done():
                task.cancel()
        await asyncio.wait((sending, gone))
    if not sending.cancelled():
        await sending


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""The bytes of a long answer, faster than through an HTTP parser; it knows nothing of what they are.

An HTTP/1.1 body with a length is nothing but that many bytes. Parsed in pieces of 64 KB they cost twice the time of
hashing them; so only what came with the head is taken from the parser, and the rest from its connection, which cannot
be used for another request afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

_READ_BYTES = 256 << 10
_WORTH_BYTES = 1 << 20


def iter_body(response: httpx.Response, stall_s: float) -> Iterator[bytes]:
    """The body as it comes, without decoding.

    Raises:
        httpx.ReadTimeout: nothing came for `stall_s` seconds.
        httpx.TransportError: the connection broke, or ended too early.
    """
    parsed = response.iter_raw()
    stream = _plain_stream(response)
    if stream is None:
        yield from parsed
        return
    # The parser gives all that it has read at its first piece.
    first = next(parsed, b"")
    yield first
    yield from _rest(stream, int(response.headers["Content-Length"]) - len(first), stall_s)


def _rest(stream: Any, n_bytes: int, stall_s: float) -> Iterator[bytes]:
    while n_bytes > 0:
        try:
            piece = stream.read(min(n_bytes, _READ_BYTES), timeout=stall_s)
        except Exception as error:
            raise _told(error) from error
        if not piece:
            raise httpx.RemoteProtocolError(f"the connection ended {n_bytes} bytes too early")
        n_bytes -= len(piece)
        yield piece


def _told(error: Exception) -> Exception:
    """httpx's exception for one of its connection's own, whose cause is the system's."""
    cause = error.__cause__ or error
    if isinstance(cause, TimeoutError):
        return httpx.ReadTimeout(str(error) or "nothing came")
    return httpx.ReadError(str(error)) if isinstance(cause, OSError) else error


def _plain_stream(response: httpx.Response) -> Any:
    """The connection of a body that is worth it and can be read from there, else None."""
    length = response.headers.get("Content-Length", "")
    is_plain = response.http_version == "HTTP/1.1" and "Transfer-Encoding" not in response.headers
    if not is_plain or not length.isdigit() or int(length) < _WORTH_BYTES:
        return None
    return response.extensions.get("network_stream")

"""Connections of the daemon's socket: how many there may be, and how long a request's header may take.

It knows nothing of requests; what is limited of their bodies is in localllm/server/limits.py.
"""

import asyncio
import contextlib
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from localllm.server import file_sending

SENDFILE = "localllm.sendfile"
"""In the `state` of a request's scope: `await send_file(handle, first, n_bytes)` sends (a part of) the body of an
answer whose start was sent, in place of messages with its bytes. Not there where the connection cannot."""
_POLL_S = 0.001


class ServerConfig(uvicorn.Config):
    """Uvicorn's settings, and ours. Connections beyond `max_connections` are refused with a 503.

    `stall_timeout_s`: how long a client may take nothing of what waits to be sent; None is for ever.
    """

    def __init__(
        self,
        app: Any,
        *,
        max_connections: int,
        client_timeout_s: float,
        stall_timeout_s: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(app, http=Connection, ws="none", **settings)
        self.max_connections = max_connections
        self.client_timeout_s = client_timeout_s
        self.stall_timeout_s = stall_timeout_s


class Connection(H11Protocol):
    """Ends a connection whose client begins a request and does not finish its header in time, or begins none.

    So it does with one that goes on sending a body after its request was answered.
    """

    config: ServerConfig
    _timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _send_at_once(transport)
        if self.scheme == "http" and file_sending.is_possible():
            self.app_state = {**self.app_state, SENDFILE: self.send_file}
        if len(self.connections) > self.config.max_connections:
            self._end(b"503 Service Unavailable", b"too many connections")
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)

    async def send_file(self, handle: int, first: int, n_bytes: int) -> None:
        """See SENDFILE. Raises: TimeoutError where the client takes nothing for too long; OSError."""
        while self.transport.get_write_buffer_size():
            await asyncio.sleep(_POLL_S)
        number = self.transport.get_extra_info("socket").fileno()
        try:
            await file_sending.send_file(number, handle, first, n_bytes, self.config.stall_timeout_s)
        except BaseException:
            # What was announced will not come.
            self.transport.abort()
            raise
        self.conn.send_with_data_passthrough(h11.Data(data=_Sent(n_bytes)))  # type: ignore[arg-type]

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.config.stall_timeout_s is not None and self._stall_timer is None:
            # Closing would wait for the client once more.
            self._stall_timer = self.loop.call_later(self.config.stall_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch(self) -> None:
        """The timer runs while it is the client's turn to send the rest of something."""
        answering = self.cycle is not None and not self.cycle.response_complete
        # Between requests nothing has begun: that is what uvicorn's own timer is for.
        between = self.cycle is not None and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if answering or between or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.config.client_timeout_s, self._too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        elif not self.transport.is_closing():
            self._end(b"408 Request Timeout", b"request header too slow")

    def _end(self, status: bytes, text: bytes) -> None:
        head = b"HTTP/1.1 %s\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
        self.transport.write(head % (status, len(text)) + b"\r\n" + text)
        self.transport.close()


def _send_at_once(transport: asyncio.Transport) -> None:
    """Let nothing wait for the client's acknowledgement of what was sent before.

    asyncio does so for sockets that name their protocol, which `socket.create_server` does not. Without it, the body
    comes 40 ms after the headers, and tokens come in bundles, wherever a client acknowledges late.
    """
    with contextlib.suppress(OSError):  # of a client that has gone already
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _Sent:
    """Stands for bytes that went out already, where only their number counts."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes

    def __len__(self) -> int:
        return self._n_bytes

"""Sends parts of files straight from the system's cache to a connection's socket; it knows nothing of requests.

Bytes that pass through Python on their way cost more than the copying itself. Threads do the sending, because a disk
may make them wait, and a client that takes nothing holds none: it is waited for by the event loop.
"""

import asyncio
import os
import select
import socket

SLICE_BYTES = 32 << 20
"""What one thread sends at most before others have their turn."""
PATIENCE_S = 0.02
"""How long a thread waits for a client that is about to take more."""


def is_possible() -> bool:
    """Whether this system can."""
    return hasattr(os, "sendfile") and hasattr(select, "poll")


async def send_file(number: int, handle: int, first: int, n_bytes: int, stall_timeout_s: float | None) -> None:
    """Send `n_bytes` of an open file from position `first` on, to the socket with this file number.

    Raises:
        TimeoutError: the client took nothing for `stall_timeout_s`.
        OSError: the connection broke off, or the file ended.
    """
    # A number of our own: the connection may close its one, which then becomes another file's.
    with socket.socket(fileno=os.dup(number)) as sock:
        end = first + n_bytes
        while first < end:
            sent = await _in_thread(sock, handle, first, min(SLICE_BYTES, end - first))
            first += sent
            if not sent:
                await asyncio.wait_for(_writable(sock), stall_timeout_s)


async def _in_thread(sock: socket.socket, handle: int, first: int, n_bytes: int) -> int:
    work = asyncio.get_running_loop().run_in_executor(None, _send_some, sock.fileno(), handle, first, n_bytes)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # Neither file may be closed under the thread's hands.
        await asyncio.wait((work,))
        raise


def _send_some(number: int, handle: int, first: int, n_bytes: int) -> int:
    """What the client takes without a pause; gives how many bytes that were."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    sent = 0
    while sent < n_bytes and poll.poll(PATIENCE_S * 1000):
        try:
            n = os.sendfile(number, handle, first + sent, n_bytes - sent)
        except BlockingIOError:
            continue
        if n == 0:
            raise OSError("the file ended before its announced length")
        sent += n
    return sent


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(sock)

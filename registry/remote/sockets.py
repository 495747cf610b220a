"""The sockets of a client's connections, to wake whoever waits for them; it knows nothing of what is said there."""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from typing import Any

# What httpcore's trace tells once a connection is made; the later ones take the place of the first.
_MADE = (".connect_tcp.complete", ".start_tls.complete")


class Sockets:
    """Those that live. May be used by several threads at once."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._are_shut = False

    def note(self, event: str, details: dict[str, Any]) -> None:
        """Take notice of a connection: a `trace` extension of httpcore's."""
        if not event.endswith(_MADE):
            return
        made = details["return_value"].get_extra_info("socket")
        if made is None:
            return
        with self._lock:
            self._known.add(made)
            if self._are_shut:
                _shut(made)

    def shut(self) -> None:
        """End all, those that are made from now on too."""
        with self._lock:
            self._are_shut = True
            for known in self._known:
                _shut(known)


def _shut(connection: socket.socket) -> None:
    # Closing would not wake a thread that reads.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)

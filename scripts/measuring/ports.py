"""Ports for servers under test, those that are measured and those of the tests."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A port that nobody listens on, below those that systems give to connections: one of these may be taken at any
    moment."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port

"""Runs a maker (localllm/maker) in a process of its own and tells how far it is; it does not know what is made.

The process is ended when nobody waits for it any longer. It ends by itself with the daemon, whose end of its standard
input closes.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from localllm.errors import LocalLLMError
from localllm.server.errors import APIError
from localllm.server.streaming import Record
from localllm.server.threads import Tell

COMMAND = (sys.executable, "-m", "localllm.maker")
N_LAST_LINES = 3
MAX_LINE_BYTES = 1 << 20


class MakerError(LocalLLMError):
    """The maker's process ended without saying why; `status` is its exit status, negative for a signal's number."""

    def __init__(self, status: int, last_lines: str) -> None:
        ended = f"it was killed by signal {-status}" if status < 0 else f"exit status {status}"
        out_of_memory = "the system may have run out of memory" if status == -9 else ""
        super().__init__(
            f"conversion failed: the process that converts ended unexpectedly ({ended})",
            hint=last_lines or out_of_memory or "see the server's log",
        )
        self.status = status


async def make(job: Mapping[str, Any], status: Record, tell: Tell, environment: Mapping[str, str]) -> None:
    """Run a job until it is done; tells `status` at first, then with `total` and `completed`. Canceled, it ends it.

    Raises: APIError with status 400 where the job is refused, MakerError where the process dies.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, **environment},
        start_new_session=True,
        limit=MAX_LINE_BYTES,
    )
    last_lines: collections.deque[str] = collections.deque(maxlen=N_LAST_LINES)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    reading = asyncio.create_task(_keep_lines(process.stderr, last_lines))
    try:
        tell(status)
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            await process.stdin.drain()
        async for line in process.stdout:
            event = json.loads(line)
            if event.get("done"):
                return
            if "error" in event:
                raise APIError(400, event["error"], hint=event.get("hint"))
            tell({**status, "total": event["total"], "completed": event["completed"]})
        await asyncio.wait_for(process.wait(), 10)
        await asyncio.wait([reading], timeout=1)
        raise MakerError(process.returncode or 0, " / ".join(last_lines))
    finally:
        await _end(process, reading)


async def _keep_lines(stream: asyncio.StreamReader, kept: collections.deque[str]) -> None:
    with contextlib.suppress(ValueError):
        async for line in stream:
            if text := line.decode(errors="replace").strip():
                kept.append(text[:500])


async def _end(process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
    """End the process and all that it started, and wait for that."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    await process.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)

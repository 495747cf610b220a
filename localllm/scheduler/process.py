"""One runner child process and the frames on its pipes; it knows nothing of requests, models or queues.

The child leads a session of its own, so that a terminal's Ctrl-C does not reach it and that whatever it
starts ends with it. It exits by itself when its stdin closes, which also covers a killed daemon.
"""

import asyncio
import collections
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence

import psutil

from localllm.frames import LENGTH_BYTES, decode_body, encode_frame, frame_length
from localllm.messages import Message, Shutdown
from localllm.records import FrameError

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_S = 5.0
TERMINATE_GRACE_S = 2.0
DRAIN_GRACE_S = 1.0
STDERR_TAIL_LINES = 20
MAX_STDERR_LINE_BYTES = 4096


class RunnerProcess:
    """A started child. `on_message` gets each message it sends, `on_exit` is called once, after the last of them.

    Both are called in the event loop and must not block.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        on_message: Callable[[Message], None],
        on_exit: Callable[[], None],
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._on_message = on_message
        self._on_exit = on_exit
        self._stderr_tail: collections.deque[str] = collections.deque(maxlen=STDERR_TAIL_LINES)
        self._closed = asyncio.Event()
        self._watcher = asyncio.create_task(self._watch(), name=f"runner {self.pid}")

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        on_message: Callable[[Message], None],
        on_exit: Callable[[], None],
        env: Mapping[str, str] | None = None,
    ) -> "RunnerProcess":
        """Start `command` with three pipes. Raises: OSError where it cannot be started."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
        )
        return cls(process, on_message, on_exit)

    def attach(self, on_message: Callable[[Message], None], on_exit: Callable[[], None]) -> None:
        """Give the child's messages and its end to somebody else from now on."""
        self._on_message, self._on_exit = on_message, on_exit

    def send(self, message: Message) -> None:
        """Queue a message for the child; never blocks. What a dead child does not read is lost."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(encode_frame(message))

    def is_alive(self) -> bool:
        """Whether the child runs; a zombie that has not been reaped yet does not."""
        if self._process.returncode is not None or self._closed.is_set():
            return False
        try:
            return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False

    def is_stopped(self) -> bool:
        """Whether the child was stopped by a signal and so cannot answer."""
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

    def cpu_time_s(self) -> float:
        """Processor seconds the child has used, 0 where it is gone."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def death_note(self) -> str:
        """How the child ended, and the last line it wrote: for people."""
        code = self._process.returncode
        if code is None:
            how = "it closed its pipe"
        elif code < 0:
            how = f"it was ended by {_signal_name(-code)}"
        else:
            how = f"its exit status was {code}"
        last = next((line for line in reversed(self._stderr_tail) if line.strip()), "")
        return f"{how}: {last.strip()}" if last else how

    async def stop(self, grace_s: float = SHUTDOWN_GRACE_S) -> None:
        """End the child: a shutdown message, then SIGTERM, then SIGKILL; returns when it is reaped.

        Takes at most `grace_s` + TERMINATE_GRACE_S and a moment.
        """
        self.send(Shutdown())
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not await self._closes_within(grace_s):
            self._signal_group(signal.SIGTERM)
            if not await self._closes_within(TERMINATE_GRACE_S):
                self.kill()
        await self._closed.wait()

    def kill(self) -> None:
        """SIGKILL to the child and all it started."""
        self._signal_group(signal.SIGKILL)

    async def _closes_within(self, timeout_s: float) -> bool:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closed.wait(), timeout_s)
        return self._closed.is_set()

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _watch(self) -> None:
        reader = asyncio.create_task(self._read_frames())
        logs = asyncio.create_task(self._read_stderr())
        exited = asyncio.create_task(self._process.wait())
        await asyncio.wait((reader, exited), return_when=asyncio.FIRST_COMPLETED)
        # One of the two has happened; the other follows at once unless something is wrong.
        await asyncio.wait((reader, exited, logs), timeout=DRAIN_GRACE_S)
        self.kill()
        await exited
        for task in (reader, logs):
            task.cancel()
        await asyncio.gather(reader, logs, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._closed.set()
        self._on_exit()

    async def _read_frames(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        try:
            while True:
                header = await stream.readexactly(LENGTH_BYTES)
                self._on_message(decode_body(await stream.readexactly(frame_length(header))))
        except asyncio.IncompleteReadError:
            return
        except FrameError as error:
            logger.error("runner %d: %s", self.pid, error)
            self._stderr_tail.append(str(error))

    async def _read_stderr(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        pending = b""
        while block := await stream.read(4096):
            *lines, pending = (pending + block).split(b"\n")
            if len(pending) > MAX_STDERR_LINE_BYTES:
                lines, pending = [*lines, pending], b""
            for line in lines:
                self._log_line(line)
        if pending:
            self._log_line(pending)

    def _log_line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        self._stderr_tail.append(text)
        logger.info("runner %d: %s", self.pid, text)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

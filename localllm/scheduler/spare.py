"""A runner that is started before a model is asked for; it does not know what will be loaded into it.

A runner's imports take a second or more, a large part of a cold start. A spare has them behind it and
waits for its first message, at the price of some 60 MB.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from localllm.messages import Message
from localllm.scheduler.process import RunnerProcess

logger = logging.getLogger(__name__)


class SpareRunner:
    """At most one idle runner process. With `enabled` false, every runner is started when it is taken."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None, enabled: bool) -> None:
        self._command, self._env, self._enabled = command, env, enabled
        self._process: RunnerProcess | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The spare's process id, 0 where there is none."""
        return self._process.pid if self._process is not None else 0

    def prepare(self) -> None:
        """Start a spare in the background, if there is none."""
        if self._enabled and self._process is None and self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="spare runner")

    async def take(self, on_message: Callable[[Message], None], on_exit: Callable[[], None]) -> RunnerProcess:
        """The spare, if it lives, else a new process. Raises: OSError where none can be started."""
        if self._starting is not None:
            await self._starting
        process, self._process = self._process, None
        if process is None or not process.is_alive():
            return await RunnerProcess.start(self._command, on_message, on_exit, self._env)
        process.attach(on_message, on_exit)
        return process

    async def stop(self) -> None:
        """End the spare; none is started afterwards."""
        self._enabled = False
        if self._starting is not None:
            await self._starting
        process, self._process = self._process, None
        if process is not None:
            await process.stop(grace_s=0.0)

    async def _start(self) -> None:
        try:
            self._process = await RunnerProcess.start(self._command, lambda message: None, self._died, self._env)
        except OSError as error:
            logger.warning("no runner can be started ahead: %s", error)
        finally:
            self._starting = None

    def _died(self) -> None:
        self._process = None

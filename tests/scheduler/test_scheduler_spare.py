"""The runner that is started ahead: used by the next load, renewed when memory is empty, never left behind."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil
import pytest

from localllm.durations import FOREVER_NS
from localllm.messages import Chunk, GenerateRequest, LoadRequest
from localllm.scheduler import Scheduler

pytestmark = pytest.mark.anyio
Make = Callable[..., Scheduler]
Want = Callable[..., LoadRequest]
Ask = Callable[[str], GenerateRequest]


def is_fake_runner(process: psutil.Process) -> bool:
    try:
        return "fake_runner" in " ".join(process.cmdline())
    except psutil.Error:  # gone, or a zombie of another test
        return False


def fake_runners() -> list[int]:
    return [process.pid for process in psutil.Process().children() if is_fake_runner(process)]


@contextlib.asynccontextmanager
async def started(scheduler: Scheduler) -> AsyncIterator[Scheduler]:
    await scheduler.start()
    try:
        yield scheduler
    finally:
        await scheduler.stop()
        assert fake_runners() == []


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        await asyncio.sleep(0.01)


async def pid_of(scheduler: Scheduler, want: LoadRequest, request: GenerateRequest, keep_alive_ns: int) -> int:
    async with await scheduler.lease(want, keep_alive_ns) as lease:
        texts = [m.text async for m in lease.generate(request) if isinstance(m, Chunk)]
    return int("".join(texts))


async def test_a_load_takes_the_spare_and_unloading_makes_another(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler(keep_spare=True)) as scheduler:
        await until(fake_runners)
        (spare,) = fake_runners()
        assert await pid_of(scheduler, want(), ask("!pid"), FOREVER_NS) == spare
        assert fake_runners() == [spare], "no second one beside a loaded model"
        assert await pid_of(scheduler, want(), ask("!pid"), 0) == spare
        await until(lambda: fake_runners() not in ([], [spare]))
        assert scheduler.running() == []


async def test_a_spare_that_died_is_not_used(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler(keep_spare=True)) as scheduler:
        await until(fake_runners)
        (spare,) = fake_runners()
        os.kill(spare, signal.SIGKILL)
        await until(lambda: spare not in fake_runners())
        assert await pid_of(scheduler, want(), ask("!pid"), FOREVER_NS) != spare


async def test_stopping_at_once_leaves_nothing(make_scheduler: Make) -> None:
    async with started(make_scheduler(keep_spare=True)):
        pass


async def test_a_command_that_does_not_exist_is_only_a_warning() -> None:
    async with started(Scheduler(command=["/nowhere/runner"], keep_spare=True)):
        pass

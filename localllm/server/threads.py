"""Lets an endpoint wait for long work, in threads or not, and tell of it; it knows nothing of the work."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from localllm.server.streaming import Record, Records

T = TypeVar("T")
R = TypeVar("R")
Tell = Callable[[Record], None]


async def told(work: Callable[[Tell], Coroutine[Any, Any, None]]) -> Records:
    """The records that some work tells while it runs. Closing this cancels the work and waits for its end."""
    records: asyncio.Queue[Record | None] = asyncio.Queue()

    async def run() -> None:
        try:
            await work(records.put_nowait)
        finally:
            records.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while (record := await records.get()) is not None:
            yield record
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run_steps(start: Callable[[threading.Event], Generator[T, None, R]], tell: Callable[[T], None]) -> R:
    """What a generator returns, each of its steps in a thread; `tell` gets what it yields.

    Canceled, this sets the event that `start` was given, waits for the step under way, and closes the generator.
    """
    cancel = threading.Event()
    work = start(cancel)
    step: asyncio.Future[tuple[bool, Any]] | None = None
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(_step, work))
            is_over, value = await asyncio.shield(step)
            if is_over:
                result: R = value
                return result
            tell(value)
    finally:
        cancel.set()
        if step is not None and not step.done():
            await asyncio.wait([step])
            step.exception()  # nobody is left to be told
        await asyncio.to_thread(work.close)


def _step(work: Generator[Any, None, Any]) -> tuple[bool, Any]:
    try:
        return False, next(work)
    except StopIteration as end:
        return True, end.value

"""Lets an endpoint wait for long work, in threads or not, and tell of it; it knows nothing of the work."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar

from localllm.server.streaming import Record, Records

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
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


async def in_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `asyncio.to_thread` gives. Canceled, this first waits for the thread: what it makes can then be removed."""
    call = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    finally:
        await _ended(call)


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
        if step is not None:
            await _ended(step)
        await in_thread(work.close)


async def _ended(call: "asyncio.Future[Any]") -> None:
    """Wait for the end of a call in a thread; what it raises is nobody's to be told any more."""
    canceled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError as error:
            canceled = error
    call.exception()
    if canceled is not None:
        raise canceled


def _step(work: Generator[Any, None, Any]) -> tuple[bool, Any]:
    try:
        return False, next(work)
    except StopIteration as end:
        return True, end.value

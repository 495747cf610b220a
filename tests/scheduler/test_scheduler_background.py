"""Leases that are not interactive: they come last, take nobody's place, and give their models up."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from localllm.durations import FOREVER_NS
from localllm.errors import ServerBusyError
from localllm.messages import Chunk, GenerateRequest, LoadRequest
from localllm.scheduler import BackgroundScheduler, Scheduler, resident

pytestmark = pytest.mark.anyio
Make = Callable[..., Scheduler]
Want = Callable[..., LoadRequest]
Ask = Callable[[str], GenerateRequest]


async def text_of(scheduler: Any, want: LoadRequest, request: GenerateRequest) -> str:
    pieces = []
    async with await scheduler.lease(want, FOREVER_NS) as lease:
        async for message in lease.generate(request):
            if isinstance(message, Chunk):
                pieces.append(message.text)
    return "".join(pieces)


@pytest.fixture
async def scheduler(make_scheduler: Make) -> Any:
    """One model at a time, one request a model."""
    made = make_scheduler(max_loaded_models=1)
    await made.start()
    yield made
    await made.stop()


async def test_the_runner_is_told(scheduler: Scheduler, want: Want, ask: Ask) -> None:
    background = BackgroundScheduler(scheduler)
    told = [json.loads(await text_of(each, want(), ask("!request"))) for each in (scheduler, background)]
    assert [request["is_interactive"] for request in told] == [True, False]


async def test_it_takes_nobodys_place(scheduler: Scheduler, want: Want, ask: Ask) -> None:
    running = asyncio.create_task(text_of(BackgroundScheduler(scheduler), want(), ask("!sleep:30 late")))
    await asyncio.sleep(0.1)
    while not any(model.active for model in scheduler.running()):
        await asyncio.sleep(0.01)
    assert await asyncio.wait_for(text_of(scheduler, want(), ask("now")), 10) == "now "
    running.cancel()


async def test_it_comes_after_everybody(scheduler: Scheduler, want: Want, ask: Ask) -> None:
    order: list[str] = []

    async def run(each: Any, name: str) -> None:
        await text_of(each, want(), ask("!sleep:0.1"))
        order.append(name)

    first = asyncio.create_task(run(scheduler, "first"))
    await asyncio.sleep(0.05)
    background = asyncio.create_task(run(BackgroundScheduler(scheduler), "background"))
    await asyncio.sleep(0.05)
    others = [asyncio.create_task(run(scheduler, name)) for name in ("second", "third")]
    await asyncio.gather(first, background, *others)
    assert order == ["first", "second", "third", "background"]


async def test_many_of_them_do_not_fill_the_queue(make_scheduler: Make, want: Want, ask: Ask) -> None:
    scheduler = make_scheduler(max_queue=1)
    await scheduler.start()
    tasks = [asyncio.create_task(text_of(BackgroundScheduler(scheduler), want(), ask("x"))) for _ in range(5)]
    await asyncio.sleep(0)
    assert await text_of(scheduler, want(), ask("now")) == "now "
    assert await asyncio.gather(*tasks) == ["x "] * 5
    await scheduler.stop()


async def test_a_model_in_use_is_not_evicted_for_it(
    scheduler: Scheduler, want: Want, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = BackgroundScheduler(scheduler)
    assert await text_of(scheduler, want("a"), ask("x")) == "x "
    (pid,) = [model.pid for model in scheduler.running()]
    with pytest.raises(ServerBusyError):
        await text_of(background, want("b"), ask("y"))
    with pytest.raises(ServerBusyError):
        await text_of(background, want("a", num_ctx=8192), ask("y"))
    assert [model.pid for model in scheduler.running()] == [pid]
    assert await text_of(background, want("a"), ask("z")) == "z "
    monkeypatch.setattr(resident, "INTERACTIVE_PAUSE_S", 0.0)
    assert await text_of(background, want("b"), ask("y")) == "y "
    assert await text_of(background, want("b", num_ctx=8192), ask("y")) == "y "


@pytest.mark.parametrize("other", [{"name": "b"}, {"name": "a", "num_ctx": 8192}])
async def test_its_model_makes_room_at_once(scheduler: Scheduler, want: Want, ask: Ask, other: dict[str, Any]) -> None:
    running = asyncio.create_task(text_of(BackgroundScheduler(scheduler), want("a"), ask("!forever")))
    while not any(model.active for model in scheduler.running()):
        await asyncio.sleep(0.01)
    assert await asyncio.wait_for(text_of(scheduler, want(**other), ask("now")), 20) == "now "
    with pytest.raises(ServerBusyError):
        await running


async def test_keep_alive_is_the_longest(scheduler: Scheduler, want: Want) -> None:
    async with await scheduler.lease(want(), 600 * 10**9):
        pass
    async with await BackgroundScheduler(scheduler).lease(want(), 0):
        pass
    await asyncio.sleep(0.1)
    assert len(scheduler.running()) == 1

"""What the scheduler counts: turns, loads, unloads and their reasons, deaths, refusals, and what runners tell."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from localllm.durations import FOREVER_NS, NS_PER_S
from localllm.errors import LocalLLMError, RunnerError, ServerBusyError
from localllm.messages import Counts, Figures, GenerateRequest, LoadRequest
from localllm.scheduler import ModelFigures, Scheduler
from localllm.scheduler.resident import model_key
from localllm.scheduler.tallies import KEPT_S, Tallies, Tally

pytestmark = pytest.mark.anyio

Make = Callable[..., Scheduler]
Want = Callable[..., LoadRequest]
Ask = Callable[[str], GenerateRequest]


@contextlib.asynccontextmanager
async def started(scheduler: Scheduler) -> AsyncIterator[Scheduler]:
    await scheduler.start()
    try:
        yield scheduler
    finally:
        await scheduler.stop()


async def answer(scheduler: Scheduler, want: LoadRequest, request: GenerateRequest, **lease: Any) -> None:
    async with await scheduler.lease(want, FOREVER_NS, **lease) as turn:
        async for _ in turn.generate(request):
            pass


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("condition not met in time")


def of(scheduler: Scheduler, name: str = "a") -> ModelFigures:
    return scheduler.figures()[name]


async def test_turns_loads_and_the_runners_own_figures(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        await answer(scheduler, want(), ask("one !figures:3 !figures:5"))
        tally, memory = of(scheduler).tally, of(scheduler).memory
        assert (tally.loads, sum(tally.load_s.counts), sum(tally.queue_s.counts)) == (1, 1, 1)
        assert sum(tally.first_token_s.counts) == 1 and tally.first_token_s.total_s >= tally.queue_s.total_s
        assert tally.counts["prompt_tokens"] == 8 and tally.token_gap_s.counts[1] == 2
        assert memory is not None and memory.memory_bytes == 1000 and memory.running == 0
        assert [levels.kv_cache_pages_used for levels in memory.levels] == [5]


async def test_who_waits_and_who_is_refused(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler(max_queue=1)) as scheduler:
        first = await scheduler.lease(want(), FOREVER_NS)
        waiting = asyncio.create_task(answer(scheduler, want(), ask("x")))
        await until(lambda: of(scheduler).waiting == 1)
        with pytest.raises(ServerBusyError):
            await scheduler.lease(want(), FOREVER_NS)
        figures = of(scheduler)
        assert figures.tally.refusals == 1 and figures.memory is not None and figures.memory.running == 1
        first.release()
        await waiting
        assert of(scheduler).waiting == 0 and sum(of(scheduler).tally.queue_s.counts) == 2


async def test_what_nobody_waits_for_has_no_times(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        await answer(scheduler, want(), ask("x"), is_interactive=False)
        tally = of(scheduler).tally
        assert tally.loads == 1 and sum(tally.queue_s.counts) == sum(tally.first_token_s.counts) == 0


async def test_a_death_counts_once_and_takes_the_levels_along(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        with pytest.raises(RunnerError):
            await answer(scheduler, want(), ask("!figures:3 !sleep:0.3 !crash"))
        await until(lambda: of(scheduler).memory is None)
        tally = of(scheduler).tally
        assert tally.runner_deaths == 1 and not tally.unloads and tally.counts["prompt_tokens"] == 3
        await answer(scheduler, want(), ask("!figures:4"))
        assert of(scheduler).tally.counts["prompt_tokens"] == 7 and of(scheduler).tally.loads == 2


@pytest.mark.parametrize("how", ["fail", "crash"])
async def test_a_load_that_fails(make_scheduler: Make, want: Want, ask: Ask, how: str) -> None:
    async with started(make_scheduler()) as scheduler:
        with pytest.raises(LocalLLMError):
            await answer(scheduler, want(fake={"load": how}), ask("x"))
        tally = of(scheduler).tally
        assert (tally.load_failures, tally.loads, tally.runner_deaths, sum(tally.load_s.counts)) == (1, 0, 0, 0)


async def test_why_models_were_unloaded(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler(max_loaded_models=1)) as scheduler:
        await answer(scheduler, want(), ask("x"))
        await answer(scheduler, want(num_ctx=8192), ask("x"))
        await answer(scheduler, want("b"), ask("x"))
        await scheduler.unload(model_key(want("b")))
        async with await scheduler.lease(want("b"), NS_PER_S // 100):
            pass
        await until(lambda: of(scheduler, "b").memory is None)
        assert of(scheduler).tally.unloads == {"reload": 1, "room": 1}
        assert of(scheduler, "b").tally.unloads == {"request": 1, "keep_alive": 1}


async def test_a_deleted_model_goes_when_its_requests_have(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        lease = await scheduler.lease(want(), FOREVER_NS)
        scheduler.forget("a")
        await scheduler.expire("manifest-a")
        assert of(scheduler).tally.loads == 1
        lease.release()
        await until(lambda: not scheduler.figures())
        await answer(scheduler, want(), ask("x"))
        assert of(scheduler).tally.loads == 1


async def test_tallies_of_unused_models_end_after_a_day() -> None:
    now_s = [0.0]
    tallies = Tallies(lambda: now_s[0])
    for name in ("a", "b", "c"):
        tallies.asked_for(name)
    now_s[0] = KEPT_S / 2
    tallies.asked_for("b")
    now_s[0] = KEPT_S + 1
    tallies.prune(in_use=["c"])
    assert [name for name, _ in tallies.items()] == ["b", "c"]


async def test_figures_that_cannot_be_right_are_left_out() -> None:
    tally = Tally(0.0)
    tally.add(Figures(Counts(prompt_tokens=1), token_gaps=[1, 2]))
    assert not tally.counts and sum(tally.token_gap_s.counts) == 0

"""Several models in one memory: who makes room, who waits, who is refused, and what needs no reload."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from localllm.durations import FOREVER_NS
from localllm.errors import ContextMemoryError, MemoryLimitError, ServerBusyError
from localllm.messages import Chunk, GenerateRequest, LoadRequest
from localllm.scheduler import Scheduler
from localllm.scheduler.budget import Budget, Promise
from localllm.scheduler.memory import MemoryEstimate

pytestmark = pytest.mark.anyio

Make = Callable[..., Scheduler]
Want = Callable[..., LoadRequest]
Ask = Callable[[str], GenerateRequest]
S = 10**9


def memory_of(total_bytes: int) -> dict[str, Any]:
    """A memory in which models take 1000 bytes, and one more for each token of their context, of up to 100,000."""
    return {
        "estimate": lambda want: MemoryEstimate(1000, 1.0, 0, 100_000),
        "budget": Budget(lambda: total_bytes, lambda: 1 << 60, lambda pid: 0),
    }


@contextlib.asynccontextmanager
async def started(scheduler: Scheduler) -> AsyncIterator[Scheduler]:
    await scheduler.start()
    try:
        yield scheduler
    finally:
        await scheduler.stop()


async def text_of(
    scheduler: Scheduler, want: LoadRequest, request: GenerateRequest, keep_alive_ns: int = FOREVER_NS
) -> str:
    pieces = []
    async with await scheduler.lease(want, keep_alive_ns) as lease:
        async for message in lease.generate(request):
            if isinstance(message, Chunk):
                pieces.append(message.text)
    return "".join(pieces)


def loaded(scheduler: Scheduler) -> dict[str, int]:
    return {model.model.name: model.n_ctx for model in scheduler.running()}


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("condition not met in time")


async def test_idle_models_make_room_and_no_more_of_them_than_needed(make_scheduler: Make, want: Want) -> None:
    async with started(make_scheduler(**memory_of(12_000))) as scheduler:
        for name in ("a", "b"):
            (await scheduler.lease(want(name, num_ctx=3000), 600 * S)).release()
        assert loaded(scheduler) == {"a": 3000, "b": 3000}
        (await scheduler.lease(want("a", num_ctx=3000), 600 * S)).release()
        (await scheduler.lease(want("c", num_ctx=6000), 600 * S)).release()
        assert loaded(scheduler) == {"a": 3000, "c": 6000}  # b was used longest ago


async def test_what_cannot_be_held_is_refused_with_the_numbers_and_costs_nobody_anything(
    make_scheduler: Make, want: Want, ask: Ask
) -> None:
    gib = 1 << 30
    settings = {
        "estimate": lambda want: MemoryEstimate(4 * gib, float(gib // 1024), gib // 2, 100_000),
        "budget": Budget(lambda: 10 * gib, lambda: 1 << 60, lambda pid: 0),
    }
    async with started(make_scheduler(**settings)) as scheduler:
        pid = await text_of(scheduler, want("a", num_ctx=1024), ask("!pid"))
        with pytest.raises(ContextMemoryError) as caught:
            await scheduler.lease(want("b", num_ctx=10_000), FOREVER_NS)
        assert str(caught.value) == (
            "model requires more system memory (14.3 GiB) than is available (10.0 GiB): weights 4.0 GiB, KV cache for "
            "10000 tokens 9.8 GiB, workspace 512 MiB; all models may take 10.0 GiB, in memory now: a 5.5 GiB; "
            "the largest num_ctx that fits is 5632"
        )
        assert await text_of(scheduler, want("a", num_ctx=1024), ask("!pid")) == pid
        with pytest.raises(ContextMemoryError):
            await scheduler.lease(want("a", num_ctx=5633), FOREVER_NS)
        assert await text_of(scheduler, want("a", num_ctx=1024), ask("!pid")) == pid
        (await scheduler.lease(want("b", num_ctx=5632), FOREVER_NS)).release()
        assert loaded(scheduler) == {"b": 5632}


async def test_without_a_wish_it_is_the_model_that_is_too_large(make_scheduler: Make, want: Want) -> None:
    async with started(make_scheduler(**memory_of(3000))) as scheduler:
        with pytest.raises(MemoryLimitError, match="requires more system memory") as caught:
            await scheduler.lease(want(num_ctx=0), FOREVER_NS)
        assert not isinstance(caught.value, ContextMemoryError) and "LOCALLLM_MAX_MEMORY" in str(caught.value.hint)
        (await scheduler.lease(want(num_ctx=512), FOREVER_NS)).release()
        assert loaded(scheduler) == {"a": 512}


async def test_an_automatic_context_is_what_memory_suggests(make_scheduler: Make, want: Want) -> None:
    async with started(make_scheduler(**memory_of(26_000))) as scheduler:
        assert await scheduler.default_ctx(want("a", num_ctx=0)) == 12_288
        (await scheduler.lease(want("a", num_ctx=0), FOREVER_NS)).release()
        # The cache of the first holds what it was promised; the second adapts rather than that a model goes.
        assert await scheduler.default_ctx(want("b", num_ctx=0)) == 4096
        (await scheduler.lease(want("b", num_ctx=0), FOREVER_NS)).release()
        assert loaded(scheduler) == {"a": 12_288, "b": 4096}
        # The third would have too little; of the two that are idle the one used longest ago goes.
        (await scheduler.lease(want("c", num_ctx=0), FOREVER_NS)).release()
        assert loaded(scheduler) == {"b": 4096, "c": 8192}


async def test_beside_busy_models_an_automatic_context_is_shorter_and_else_it_waits(
    make_scheduler: Make, want: Want, ask: Ask
) -> None:
    async with started(make_scheduler(**memory_of(20_000))) as scheduler:
        busy = asyncio.create_task(text_of(scheduler, want("a", num_ctx=13_000), ask("!forever")))
        await until(lambda: loaded(scheduler))
        (await scheduler.lease(want("b", num_ctx=0), FOREVER_NS)).release()
        assert loaded(scheduler) == {"a": 13_000, "b": 2048}
        waits = asyncio.create_task(text_of(scheduler, want("c", num_ctx=12_000), ask("c")))
        await asyncio.sleep(0.3)
        assert not waits.done() and loaded(scheduler) == {"a": 13_000}
        busy.cancel()
        assert await asyncio.wait_for(waits, 10) == "c " and loaded(scheduler) == {"c": 12_000}


async def test_a_load_that_waits_for_a_busy_model_holds_nobody_up_whom_it_leaves_room(
    make_scheduler: Make, want: Want, ask: Ask
) -> None:
    async with started(make_scheduler(**memory_of(12_000), max_loaded_models=4)) as scheduler:
        busy = asyncio.create_task(text_of(scheduler, want("a", num_ctx=8000), ask("!forever")))
        await until(lambda: loaded(scheduler))
        waits = asyncio.create_task(text_of(scheduler, want("b", num_ctx=8000), ask("b")))
        await asyncio.sleep(0.1)
        assert await asyncio.wait_for(text_of(scheduler, want("c", num_ctx=1000), ask("c")), 5) == "c "
        # What would take the room that b waits for comes after it.
        later = asyncio.create_task(text_of(scheduler, want("d", num_ctx=0), ask("d")))
        await asyncio.sleep(0.3)
        assert loaded(scheduler) == {"a": 8000, "c": 1000} and not waits.done() and not later.done()
        busy.cancel()
        assert await asyncio.wait_for(asyncio.gather(waits, later), 10) == ["b ", "d "]


async def test_nobody_loads_for_a_client_that_stopped_waiting_for_room(
    make_scheduler: Make, want: Want, ask: Ask
) -> None:
    async with started(make_scheduler(**memory_of(10_000))) as scheduler:
        wanted = want("a", num_ctx=8000, num_parallel=2)
        busy = asyncio.create_task(text_of(scheduler, wanted, ask("!forever")))
        await until(lambda: loaded(scheduler))
        waits = asyncio.create_task(scheduler.lease(want("b", num_ctx=8000), FOREVER_NS))
        await asyncio.sleep(0.1)
        waits.cancel()
        # The busy model takes requests again at once.
        assert await asyncio.wait_for(text_of(scheduler, wanted, ask("x")), 5) == "x "
        busy.cancel()
        await asyncio.sleep(0.1)
        assert loaded(scheduler) == {"a": 8000}


async def test_what_needs_no_reload_causes_none(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler(**memory_of(41_000))) as scheduler:
        first = want(num_ctx=0, num_thread=2, num_batch=512)
        pid = await text_of(scheduler, first, ask("!pid"))
        for change in ({"num_ctx": 16_384}, {"num_ctx": 100}, {"num_batch": 64}, {"num_thread": 0}, {"num_kv": 7}):
            assert await text_of(scheduler, replace(first, **change), ask("!pid")) == pid, change
        for change in ({"num_ctx": 17_000}, {"num_batch": 1024}, {"num_thread": 1}, {"kv_cache_type": "q8_0"}):
            again = await text_of(scheduler, replace(first, **change), ask("!pid"))
            assert again != pid, change
            pid = again
        assert loaded(scheduler) == {"a": 17_000}  # the longest of all stayed


async def test_a_model_is_not_loaded_again_for_a_context_that_it_was_loaded_for(
    make_scheduler: Make, want: Want, ask: Ask
) -> None:
    """The header says that the model was trained for 4096 tokens, its process speaks of 131,072."""
    memory = {**memory_of(41_000), "estimate": lambda want: MemoryEstimate(1000, 1.0, 0, 4096)}
    async with started(make_scheduler(**memory)) as scheduler:
        first, again = [await asyncio.wait_for(text_of(scheduler, want(num_ctx=8192), ask("!pid")), 20) for _ in "ab"]
        assert first == again and loaded(scheduler) == {"a": 4096}


async def test_two_clients_with_different_contexts_do_not_take_turns(
    make_scheduler: Make, want: Want, ask: Ask
) -> None:
    async with started(make_scheduler(**memory_of(41_000))) as scheduler:
        pids = [await text_of(scheduler, want(num_ctx=n), ask("!pid")) for n in (512, 2048, 512, 2048, 0, 512, 0, 2048)]
        assert len(set(pids)) == 3 and len(set(pids[1:4])) == 1 and len(set(pids[4:])) == 1
        assert loaded(scheduler) == {"a": 16_384}


async def test_sixteen_at_a_time_and_then_in_order(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        wanted = want(num_parallel=16)
        (await scheduler.lease(wanted, FOREVER_NS)).release()
        order: list[int] = []

        async def one(n: int) -> None:
            async with await scheduler.lease(wanted, FOREVER_NS) as lease:
                order.append(n)
                async for _ in lease.generate(ask("!sleep:0.2 x")):
                    pass

        tasks = [asyncio.create_task(one(n)) for n in range(20)]
        await asyncio.sleep(0.1)
        assert order == list(range(16)) and scheduler.running()[0].active == 16
        await asyncio.gather(*tasks)
        assert order == list(range(20))


async def test_a_flood_of_one_model_is_refused_and_not_what_comes_for_others(
    make_scheduler: Make, want: Want, ask: Ask
) -> None:
    async with started(make_scheduler(max_queue=4)) as scheduler:
        for name in ("a", "b"):
            (await scheduler.lease(want(name), FOREVER_NS)).release()
        running = [asyncio.create_task(text_of(scheduler, want(n), ask("!sleep:0.4 x"))) for n in ("a", "b")]
        await until(lambda: all(model.active for model in scheduler.running()))
        flood = [asyncio.create_task(text_of(scheduler, want("a"), ask(f"a{n}"))) for n in range(5)]
        await asyncio.sleep(0)
        others = [asyncio.create_task(text_of(scheduler, want("b"), ask(f"b{n}"))) for n in range(3)]
        texts = await asyncio.gather(*flood, *others, return_exceptions=True)
        refused = [isinstance(text, ServerBusyError) for text in texts]
        # The fifth found the queue full; the fourth and the third made room for two others; then both have as many.
        assert refused == [False, False, True, True, True, False, False, True]
        assert [text for text in texts if isinstance(text, str)] == ["a0 ", "a1 ", "b0 ", "b1 "]
        assert scheduler.figures()["a"].tally.refusals == 3 and scheduler.figures()["b"].tally.refusals == 1
        await asyncio.gather(*running)


async def test_models_that_do_not_fit_together_take_turns(make_scheduler: Make, want: Want, ask: Ask) -> None:
    order: list[str] = []

    async def one(name: str) -> None:
        async with await scheduler.lease(want(name), FOREVER_NS) as lease:
            order.append(name)
            async for _ in lease.generate(ask("!sleep:0.05 x")):
                pass

    async with started(make_scheduler(max_loaded_models=1)) as scheduler:
        names = [*"aaaa", *"bbbb", "c"]
        tasks = []
        for name in names:
            tasks.append(asyncio.create_task(one(name)))
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        # Its turn came before the second ones of those that had more waiting for longer.
        assert order.index("c") <= 3 and sorted(order) == sorted(names)


async def test_the_runner_is_told_the_sizes(make_scheduler: Make, want: Want, ask: Ask) -> None:
    scheduler = make_scheduler(**memory_of(41_000))
    async with started(scheduler):
        for num_parallel, num_kv in ((16, 4000), (2, 2000), (1, 1000)):
            wanted = want(f"m{num_parallel}", num_ctx=1000, num_parallel=num_parallel)
            told = json.loads(await text_of(scheduler, wanted, ask("!load"), 0))
            assert (told["num_ctx"], told["num_kv"], told["num_parallel"]) == (1000, num_kv, num_parallel)
            await until(lambda: not loaded(scheduler))


@pytest.mark.parametrize("seed", range(3))
async def test_promises_stay_within_the_budget_whatever_comes(
    make_scheduler: Make, want: Want, ask: Ask, seed: int
) -> None:
    total, random = 12_000, Random(seed)
    promised: list[int] = []

    class Watched(Budget):
        def room(self, staying: Iterable[Promise], leaving: Iterable[Promise] = ()) -> int:
            promised.append(sum(model.promised_bytes for model in scheduler._residents))
            return super().room(staying, leaving)

    settings = memory_of(total) | {"budget": Watched(lambda: total, lambda: 1 << 60, lambda pid: 0)}
    async with started(make_scheduler(**settings)) as scheduler:

        async def one() -> str:
            wanted = want(random.choice("abc"), num_ctx=random.choice((0, 0, 500, 3000, 9000, 12_000)), num_parallel=4)
            await asyncio.sleep(random.random())
            try:
                return await asyncio.wait_for(text_of(scheduler, wanted, ask(f"!sleep:{random.random() / 10} x")), 30)
            except MemoryLimitError as error:
                assert wanted.num_ctx == 12_000, error
                return "refused"

        assert set(await asyncio.gather(*(one() for _ in range(20)))) <= {"x ", "refused"}
    assert max(promised) <= total

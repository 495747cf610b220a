"""The scheduler against scripted runner processes: turns, loading, keep-alive, crashes, cancellation."""

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
from localllm.errors import (
    ContextLengthError,
    GGUFError,
    LocalLLMError,
    RequestError,
    RunnerError,
    ServerBusyError,
    UnsupportedModelError,
)
from localllm.messages import Chunk, Detokenize, Done, GenerateRequest, LoadRequest, Progress, Rendered, Tokenize
from localllm.scheduler import Scheduler
from localllm.scheduler.memory import MemoryEstimate
from localllm.scheduler.resident import STOPPED_UNEXPECTEDLY, model_key

pytestmark = pytest.mark.anyio

S = 1_000_000_000
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
        assert _children() == []


def _children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if "fake_runner" in " ".join(_cmdline(child))]


def _cmdline(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline() or ["fake_runner zombie"]
    return []


async def text_of(
    scheduler: Scheduler, want: LoadRequest, request: GenerateRequest, keep_alive_ns: int = FOREVER_NS
) -> str:
    pieces = []
    async with await scheduler.lease(want, keep_alive_ns) as lease:
        async for message in lease.generate(request):
            if isinstance(message, Chunk):
                pieces.append(message.text)
    return "".join(pieces)


async def until(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        await asyncio.sleep(0.01)


async def test_a_request_loads_the_model_and_streams(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        messages = []
        async with await scheduler.lease(want(), FOREVER_NS) as lease:
            async for message in lease.generate(ask("one two")):
                messages.append(message)
        assert [m.text for m in messages if isinstance(m, Chunk)] == ["one ", "two "]
        done = messages[-1]
        assert isinstance(done, Done) and done.stats.eval_count == 2 and done.context == [1, 2, 3]
        (running,) = scheduler.running()
        assert running.size_bytes == 1000 and running.n_ctx == 4096 and running.active == 0


async def test_second_request_uses_the_same_process(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        first = await text_of(scheduler, want(), ask("!pid"))
        assert await text_of(scheduler, want(), ask("!pid")) == first


async def test_progress_reaches_everyone_who_waits(make_scheduler: Make, want: Want) -> None:
    async with started(make_scheduler()) as scheduler:
        heard: list[list[Progress]] = [[], []]
        wanted = want(fake={"load_steps": 3, "load_delay_s": 0.02})
        leases = await asyncio.gather(*(scheduler.lease(wanted, FOREVER_NS, log.append) for log in heard[:1]))
        assert [(p.completed, p.total) for p in heard[0]] == [(1, 3), (2, 3), (3, 3)]
        leases[0].release()


async def test_load_failure_has_the_runners_class_and_hint(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        with pytest.raises(UnsupportedModelError, match="foo") as caught:
            await text_of(scheduler, want(fake={"load": "fail"}), ask("x"))
        assert caught.value.hint == "pick another model"
        assert await text_of(scheduler, want("b"), ask("x")) == "x "


async def test_death_while_loading_names_the_last_line(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        with pytest.raises(RunnerError, match="exit status was 3: no such luck"):
            await text_of(scheduler, want(fake={"load": "crash"}), ask("x"))


async def test_a_load_without_progress_times_out(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler(load_timeout_s=2.0)) as scheduler:
        with pytest.raises(RunnerError, match="timed out waiting"):
            await text_of(scheduler, want(fake={"load": "hang"}), ask("x"))
        # The limit is on silence, not on the whole.
        slow = want("b", fake={"load_steps": 5, "load_delay_s": 0.5})
        assert await text_of(scheduler, slow, ask("x")) == "x "


async def test_a_command_that_does_not_exist(want: Want, ask: Ask) -> None:
    scheduler = Scheduler(command=["/no/such/runner"], estimate=lambda _: MemoryEstimate(1, 0))
    async with started(scheduler):
        with pytest.raises(RunnerError, match="cannot be started"):
            await text_of(scheduler, want(), ask("x"))


async def test_missing_files_are_an_error(want: Want, ask: Ask) -> None:
    async with started(Scheduler(command=["/no/such/runner"])) as scheduler:
        with pytest.raises(GGUFError, match="cannot be read"):
            await text_of(scheduler, want(), ask("x"))


async def test_a_request_that_always_crashes_is_tried_once_more_only(
    make_scheduler: Make, want: Want, ask: Ask
) -> None:
    async with started(make_scheduler()) as scheduler:
        await text_of(scheduler, want(), ask("x"))
        with pytest.raises(RunnerError):
            await text_of(scheduler, want(), ask("!crash"))
        assert await text_of(scheduler, want(), ask("y")) == "y "


@pytest.mark.parametrize("how", ["!crash", "!exit", "!garbage"])
async def test_a_crash_ends_its_requests_and_the_next_reloads(
    make_scheduler: Make, want: Want, ask: Ask, how: str
) -> None:
    async with started(make_scheduler()) as scheduler:
        wanted = want(num_parallel=2)
        neighbour = asyncio.create_task(text_of(scheduler, wanted, ask("!forever")))
        await until(lambda: scheduler.running() and scheduler.running()[0].active == 1)
        pid = scheduler.running()[0].pid
        with pytest.raises(RunnerError) as caught:
            await text_of(scheduler, wanted, ask(f"one {how}"))
        assert str(caught.value) == STOPPED_UNEXPECTEDLY
        with pytest.raises(RunnerError):
            await neighbour
        assert scheduler.running() == []
        assert await text_of(scheduler, wanted, ask("!pid")) != f"{pid} "


async def test_killed_between_requests(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        for _ in range(5):
            await text_of(scheduler, want(), ask("x"))
            os.kill(scheduler.running()[0].pid, signal.SIGKILL)
            assert await text_of(scheduler, want(), ask("y")) == "y "


async def test_a_stopped_runner_is_unloaded_in_bounded_time(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        await text_of(scheduler, want(), ask("x"))
        os.kill(scheduler.running()[0].pid, signal.SIGSTOP)
        start = time.monotonic()
        assert await scheduler.unload(model_key(want()))
        assert time.monotonic() - start < 10 and scheduler.running() == []
        assert await text_of(scheduler, want(), ask("y")) == "y "


async def test_a_stopped_runner_with_a_request(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        stream = asyncio.create_task(text_of(scheduler, want(), ask("!forever")))
        await until(scheduler.running)
        os.kill(scheduler.running()[0].pid, signal.SIGSTOP)
        await until(lambda: psutil.Process(scheduler.running()[0].pid).status() == psutil.STATUS_STOPPED)
        assert await scheduler.unload(model_key(want()))
        with pytest.raises(RunnerError, match="unloaded"):
            await stream
        assert await text_of(scheduler, want(), ask("y")) == "y "


async def test_a_stubborn_runner_is_killed(
    make_scheduler: Make, want: Want, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localllm.scheduler.process.TERMINATE_GRACE_S", 0.3)
    monkeypatch.setattr("localllm.scheduler.process.RunnerProcess.stop.__defaults__", (0.3,))
    async with started(make_scheduler()) as scheduler:
        await text_of(scheduler, want(fake={"stubborn": True}), ask("x"))
        start = time.monotonic()
        await scheduler.unload(model_key(want()))
        assert 0.5 < time.monotonic() - start < 5


async def test_a_hung_runner_is_ended_by_the_watchdog(
    make_scheduler: Make, want: Want, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localllm.scheduler.scheduler.WATCHDOG_INTERVAL_S", 0.1)
    monkeypatch.setattr("localllm.scheduler.resident.HANG_TIMEOUT_S", 0.5)
    async with started(make_scheduler()) as scheduler:
        assert await text_of(scheduler, want(), ask("!sleep:0.2 x")) == "x "
        with pytest.raises(RunnerError):
            await text_of(scheduler, want(), ask("one !hang"))


async def test_a_hung_runner_that_is_to_be_unloaded_is_ended_sooner(
    make_scheduler: Make, want: Want, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localllm.scheduler.scheduler.WATCHDOG_INTERVAL_S", 0.1)
    monkeypatch.setattr("localllm.scheduler.scheduler.UNWANTED_HANG_TIMEOUT_S", 0.5)
    async with started(make_scheduler()) as scheduler:
        hung = asyncio.create_task(text_of(scheduler, want(), ask("one !hang")))
        await until(lambda: scheduler.running() and scheduler.running()[0].active)
        assert await scheduler.unload(model_key(want()))
        with pytest.raises(RunnerError):
            await asyncio.wait_for(hung, 10)
        assert await text_of(scheduler, want(), ask("y")) == "y "


@pytest.mark.parametrize(
    ("kind", "error_class"),
    [("RequestError", RequestError), ("ContextLengthError", ContextLengthError), ("Exception", RunnerError)],
)
async def test_an_error_ends_its_request_alone(
    make_scheduler: Make, want: Want, ask: Ask, kind: str, error_class: type[LocalLLMError]
) -> None:
    async with started(make_scheduler()) as scheduler:
        with pytest.raises(error_class, match="scripted error") as caught:
            await text_of(scheduler, want(), ask(f"one !error:{kind}"))
        assert type(caught.value) is error_class and caught.value.hint == "try less"
        pid = scheduler.running()[0].pid
        assert await text_of(scheduler, want(), ask("!pid")) == str(pid)


async def test_closing_the_stream_cancels(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        async with await scheduler.lease(want(), FOREVER_NS) as lease:
            stream = lease.generate(ask("!forever"))
            await stream.__anext__()
            await stream.aclose()
        assert await asyncio.wait_for(text_of(scheduler, want(), ask("x")), 5) == "x "


async def test_cancelled_while_waiting_leaves_the_queue(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        first = asyncio.create_task(text_of(scheduler, want(), ask("!sleep:0.5 first")))
        await until(lambda: scheduler.running() and scheduler.running()[0].active)
        second = asyncio.create_task(text_of(scheduler, want(), ask("second")))
        third = asyncio.create_task(text_of(scheduler, want(), ask("third")))
        await asyncio.sleep(0.05)
        second.cancel()
        assert await first == "first " and await third == "third "


async def test_order_of_arrival_and_queue_limit(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler(max_queue=4)) as scheduler:
        await text_of(scheduler, want(), ask("warm"))
        finished: list[int] = []

        async def one(number: int) -> str:
            text = await text_of(scheduler, want(), ask(f"!sleep:0.05 {number}"))
            finished.append(number)
            return text

        results = await asyncio.gather(*(one(n) for n in range(12)), return_exceptions=True)
        assert finished == [0, 1, 2, 3, 4]
        busy = [r for r in results if isinstance(r, ServerBusyError)]
        assert len(busy) == 7
        assert str(busy[0]) == "server busy, please try again.  maximum pending requests exceeded"


async def test_parallel_requests_run_together(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        wanted = want(num_parallel=3)
        await text_of(scheduler, wanted, ask("warm"))
        start = time.monotonic()
        texts = await asyncio.gather(*(text_of(scheduler, wanted, ask(f"!sleep:0.4 {n}")) for n in range(3)))
        assert texts == ["0 ", "1 ", "2 "] and time.monotonic() - start < 1.0


async def test_a_larger_context_reloads_without_starving(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        small, large = want(num_ctx=256, num_parallel=2), want(num_ctx=512, num_parallel=2)
        running = True

        async def client(number: int) -> None:
            while running:
                assert await text_of(scheduler, small, ask(f"!sleep:0.01 {number}")) == f"{number} "

        clients = [asyncio.create_task(client(n)) for n in range(10)]
        await asyncio.sleep(0.5)
        assert scheduler.running()[0].n_ctx == 256
        assert await asyncio.wait_for(text_of(scheduler, large, ask("odd")), 10) == "odd "
        assert await asyncio.wait_for(text_of(scheduler, want("b"), ask("other")), 10) == "other "
        running = False
        await asyncio.gather(*clients)
        sizes = {m.model.name: m.n_ctx for m in scheduler.running()}
        assert sizes == {"a": 512, "b": 4096}


async def test_a_context_beyond_the_trained_one_does_not_reload_again(
    make_scheduler: Make, want: Want, ask: Ask
) -> None:
    async with started(make_scheduler()) as scheduler:
        pids = set()
        for num_ctx in (8192, 8192, 100_000, 2048, 100):
            wanted = want(num_ctx=num_ctx, fake={"n_ctx_train": 2048})
            pids.add(await text_of(scheduler, wanted, ask("!pid")))
        assert len(pids) == 1


async def test_same_weights_share_a_runner_but_templates_do_not(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        a = want()
        alias = LoadRequest(type(a.model)("alias", "other", a.model.model_paths, a.model.model_digest), 4096)
        pid = await text_of(scheduler, a, ask("!pid"))
        assert await text_of(scheduler, alias, ask("!pid")) == pid
        assert [m.model.name for m in scheduler.running()] == ["alias"]


@pytest.mark.parametrize("busy", [False, True])
async def test_the_model_limit_evicts(make_scheduler: Make, want: Want, ask: Ask, busy: bool) -> None:
    async with started(make_scheduler(max_loaded_models=2)) as scheduler:
        await text_of(scheduler, want("a"), ask("x"), 100 * S)
        await text_of(scheduler, want("b"), ask("x"), 200 * S)
        work = [
            asyncio.create_task(text_of(scheduler, want("a"), ask("!sleep:0.5 a"), 100 * S)),
            asyncio.create_task(text_of(scheduler, want("b"), ask("!sleep:0.6 b"), 200 * S)),
        ]
        if not busy:
            await asyncio.gather(*work)
        assert await text_of(scheduler, want("c"), ask("c")) == "c "
        assert [m.model.name for m in scheduler.running()] == ["c", "b"]
        assert await asyncio.gather(*work) == ["a ", "b "]


async def test_two_models_in_turn_under_a_limit_of_one(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler(max_loaded_models=1)) as scheduler:
        names = [("a", "b")[n % 2] for n in range(8)]
        texts = await asyncio.gather(*(text_of(scheduler, want(name), ask(name)) for name in names))
        assert texts == [f"{name} " for name in names]


async def test_keep_alive_counts_from_the_end(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        await text_of(scheduler, want(), ask("!sleep:0.6 x"), S // 2)
        assert scheduler.running()
        left_s = scheduler.running()[0].expires_at_ns / 1e9 - time.time()
        assert 0.2 < left_s <= 0.5
        await until(lambda: not scheduler.running(), 2)
        await until(lambda: not _children(), 5)


async def test_keep_alive_zero_unloads_with_the_last_message(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        async with await scheduler.lease(want(), 0) as lease:
            async for message in lease.generate(ask("x")):
                if isinstance(message, Done):
                    assert scheduler.running() == []
        assert await text_of(scheduler, want(), ask("y")) == "y "


async def test_keep_alive_zero_waits_for_the_others(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        wanted = want(num_parallel=2)
        long = asyncio.create_task(text_of(scheduler, wanted, ask("!sleep:0.5 long"), FOREVER_NS))
        await until(lambda: scheduler.running() and scheduler.running()[0].active)
        await text_of(scheduler, wanted, ask("short"), 0)
        assert scheduler.running() and await scheduler.unload(model_key(wanted))
        assert await long == "long "
        assert scheduler.running() == []


async def test_forever_is_far_in_the_future(make_scheduler: Make, want: Want, ask: Ask) -> None:
    async with started(make_scheduler()) as scheduler:
        await text_of(scheduler, want(), ask("x"), FOREVER_NS)
        assert scheduler.running()[0].expires_at_ns > time.time_ns() + 100 * 365 * 86400 * S


async def test_clients_that_leave_while_loading_do_not_leak(make_scheduler: Make, want: Want) -> None:
    async with started(make_scheduler()) as scheduler:
        wanted = want(fake={"load_steps": 3, "load_delay_s": 0.1})
        task = asyncio.create_task(scheduler.lease(wanted, S // 5))
        await asyncio.sleep(0.1)
        task.cancel()
        await until(scheduler.running)
        assert scheduler.running()[0].active == 0
        await until(lambda: not scheduler.running(), 3)


async def test_tokenize_and_render(make_scheduler: Make, want: Want) -> None:
    async with started(make_scheduler()) as scheduler:
        async with await scheduler.lease(want(), FOREVER_NS) as lease:
            assert await lease.tokenize(Tokenize("t", "ab")) == [97, 98]
            assert await lease.detokenize(Detokenize("d", [97, 98])) == "ab"
        request = GenerateRequest("r", "generate", prompt="hello", debug_render_only=True)
        async with await scheduler.lease(want(), FOREVER_NS) as lease:
            assert [m async for m in lease.generate(request)] == [Rendered("r", "hello", [0])]


async def test_stop_ends_waiting_loading_and_running_requests(make_scheduler: Make, want: Want, ask: Ask) -> None:
    scheduler = make_scheduler()
    await scheduler.start()
    tasks = [
        asyncio.create_task(text_of(scheduler, want(), ask("!forever"))),
        asyncio.create_task(text_of(scheduler, want(), ask("x"))),
    ]
    await until(scheduler.running)
    tasks.append(asyncio.create_task(text_of(scheduler, want("b", fake={"load": "hang"}), ask("x"))))
    await asyncio.sleep(0.3)
    start = time.monotonic()
    await scheduler.stop()
    assert time.monotonic() - start < 10
    for task in tasks:
        with pytest.raises(RunnerError):
            await task
    with pytest.raises(RunnerError):
        await scheduler.lease(want(), FOREVER_NS)
    assert _children() == []

"""Gives requests a loaded model each: queue, loading one at a time, eviction, keep-alive.

It knows nothing of HTTP, and passes requests and answers on without looking at their content.

Requests wait in one list, in order of arrival. `_dispatch` walks it after every change and grants what can be
granted; a request that cannot be holds back later ones for the same model, so that one which needs a reload is
never starved by others that do not, while other loaded models go on being served. At most one model loads at a
time. To make room, an idle model goes, the one with the shortest keep-alive first; where all are busy that one is
marked as draining: it takes no new requests until the load is over.

Requests that are not interactive come after all that are. They take no place of theirs on a model, and no model that
people use makes room for one of theirs; the reverse does, at once, and its requests fail with ServerBusyError: to be
asked again later.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from localllm.errors import LocalLLMError, RunnerError, ServerBusyError
from localllm.messages import (
    Chunk,
    Detokenize,
    Embed,
    Embeddings,
    Error,
    Figures,
    GenerateRequest,
    LoadRequest,
    Message,
    ModelSpec,
    Progress,
    Rank,
    Ready,
    Scores,
    Text,
    Tokenize,
    Tokens,
)
from localllm.scheduler import memory
from localllm.scheduler.figures import ModelFigures, figures_of
from localllm.scheduler.resident import (
    TERMINAL,
    UNWANTED_HANG_TIMEOUT_S,
    ModelKey,
    Resident,
    State,
    error_of,
    model_key,
)
from localllm.scheduler.spare import SpareRunner
from localllm.scheduler.tallies import Tallies

logger = logging.getLogger(__name__)

RUNNER_COMMAND = (sys.executable, "-m", "localllm.runner")
DEFAULT_MAX_LOADED_MODELS = 3
MIN_SHRUNK_CTX = 512
WATCHDOG_INTERVAL_S = 5.0
# A runner that dies this soon after it was sent a request, without a word, was dying before.
EARLY_DEATH_S = 0.25
BUSY = "server busy, please try again.  maximum pending requests exceeded"
WANTED = "what would have to be unloaded is in interactive use"


@dataclass(eq=False)
class _Waiter:
    want: LoadRequest
    keep_alive_ns: int
    granted: "asyncio.Future[Resident]"
    on_progress: Callable[[Progress], None] | None = None
    is_interactive: bool = True
    since_s: float = field(default_factory=time.monotonic)
    key: ModelKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = model_key(self.want)


@dataclass(frozen=True)
class RunningModel:
    """A loaded model as others may see it. `expires_at_ns` is Unix time, centuries away for never."""

    model: ModelSpec
    size_bytes: int
    expires_at_ns: int
    n_ctx: int
    active: int
    pid: int


class Lease:
    """The right to send one request to a loaded model, given back by `release` or at the end of `async with`."""

    def __init__(self, scheduler: "Scheduler", resident: Resident, waiter: _Waiter) -> None:
        self._scheduler = scheduler
        self._resident = resident
        self._waiter = waiter
        self._released = False
        self._has_answered = False

    @property
    def ready(self) -> Ready:
        """What the runner said of the model: n_ctx, memory, capabilities."""
        return self._resident.ready

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Message, None]:
        """The messages of one request: Prefills, Chunks, then a Done (or a Rendered alone).

        The lease is released before the last message is handed out. Closing the iterator early cancels the request.
        Raises: what the runner names in an Error, or RunnerError where it dies.
        """
        sent_at, silent = time.monotonic(), True
        try:
            async with contextlib.aclosing(self._messages(request)) as messages:
                async for message in messages:
                    silent = False
                    yield message
                return
        except RunnerError as error:
            # The process was dying already when it was given the request: that is not the request's doing.
            died = error is self._resident.failure and not self._scheduler.is_stopping
            if not (died and silent and time.monotonic() - sent_at < EARLY_DEATH_S):
                raise
        waiter = self._waiter
        again = await self._scheduler.lease(waiter.want, waiter.keep_alive_ns, is_interactive=waiter.is_interactive)
        self._resident = again._resident
        self._released = False
        async with contextlib.aclosing(self._messages(request)) as messages:
            async for message in messages:
                yield message

    async def _messages(self, request: GenerateRequest) -> AsyncGenerator[Message, None]:
        stream = self._resident.open_stream(self._marked(request))
        finished = False
        try:
            while not finished:
                message = await stream.get()
                finished = isinstance(message, (TERMINAL, LocalLLMError))
                if finished:
                    self._resident.close_stream(request.id)
                    self.release()
                if isinstance(message, LocalLLMError):
                    raise message
                if isinstance(message, Error):
                    raise error_of(message.kind, message.error, message.hint, message.fields)
                if isinstance(message, Chunk) and not self._has_answered:
                    self._has_answered = True
                    self._scheduler._first_token(self._waiter)
                yield message
        finally:
            if not finished:
                self._resident.close_stream(request.id)
                self._resident.cancel_request(request.id)
            self.release()

    def _marked(self, request: Message) -> Message:
        """The request, saying so where nobody waits for it."""
        if not self._waiter.is_interactive and isinstance(request, (GenerateRequest, Embed)):
            return replace(request, is_interactive=False)
        return request

    async def tokenize(self, request: Tokenize) -> list[int]:
        """Token ids of a text. Raises: as `generate`."""
        answer = await self._ask(request)
        assert isinstance(answer, Tokens)
        return answer.tokens

    async def detokenize(self, request: Detokenize) -> str:
        """The text of token ids. Raises: as `generate`."""
        answer = await self._ask(request)
        assert isinstance(answer, Text)
        return answer.text

    async def embed(self, request: Embed) -> Embeddings:
        """The vectors of texts. Raises: as `generate`."""
        answer = await self._ask(request)
        assert isinstance(answer, Embeddings)
        return answer

    async def rank(self, request: Rank) -> Scores:
        """How well documents answer a query. Raises: as `generate`."""
        answer = await self._ask(request)
        assert isinstance(answer, Scores)
        return answer

    async def _ask(self, request: Tokenize | Detokenize | Embed | Rank) -> Message:
        """The one answer to a request; who stops waiting for it cancels it."""
        stream = self._resident.open_stream(self._marked(request))
        message = None
        try:
            message = await stream.get()
        finally:
            self._resident.close_stream(request.id)
            if message is None:
                self._resident.cancel_request(request.id)
        if isinstance(message, LocalLLMError):
            raise message
        if isinstance(message, Error):
            raise error_of(message.kind, message.error, message.hint, message.fields)
        return message

    def release(self) -> None:
        """Give the model back; its keep-alive starts when the last lease has gone. May be called twice."""
        if not self._released:
            self._released = True
            self._scheduler._release(self._resident, self._waiter.is_interactive)

    async def __aenter__(self) -> "Lease":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Scheduler:
    """The resident models of this machine. All methods belong to one event loop.

    `command` starts a runner; with `keep_spare` one is started ahead, at first and after each unloading;
    `max_loaded_models` 0 chooses; `load_timeout_s` None waits for ever; `estimate` and `available_bytes` answer for
    memory (`estimate` runs in a thread).
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = RUNNER_COMMAND,
        env: Mapping[str, str] | None = None,
        max_queue: int = 512,
        max_loaded_models: int = 0,
        load_timeout_s: float | None = 300.0,
        keep_spare: bool = False,
        estimate: Callable[[LoadRequest], memory.MemoryEstimate] = memory.estimate,
        available_bytes: Callable[[], int] = memory.available_bytes,
    ) -> None:
        self._spare = SpareRunner(tuple(command), env, keep_spare)
        self._max_queue = max_queue
        self._max_loaded = max_loaded_models or DEFAULT_MAX_LOADED_MODELS
        self._load_timeout_s = load_timeout_s
        self._estimate = estimate
        self._available_bytes = available_bytes
        self._tallies = Tallies()
        self._residents: dict[ModelKey, Resident] = {}
        self._pending: list[_Waiter] = []
        self._load_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._watchdog: asyncio.Task[None] | None = None
        self.is_stopping = False

    async def start(self) -> None:
        """Begin to watch over the runners."""
        self._watchdog = asyncio.create_task(self._watch(), name="scheduler watchdog")
        self._spare.prepare()

    async def stop(self) -> None:
        """Unload everything, within a bounded time; requests that run or wait end with an error."""
        self.is_stopping = True
        for waiter in self._pending:
            if not waiter.granted.done():
                waiter.granted.set_exception(RunnerError("the server is shutting down"))
        self._pending.clear()
        for task in (self._watchdog, self._load_task):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await asyncio.gather(*(self._unload(resident, "shutdown") for resident in list(self._residents.values())))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._spare.stop()

    async def lease(
        self,
        want: LoadRequest,
        keep_alive_ns: int,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        is_interactive: bool = True,
    ) -> Lease:
        """Wait for a turn on this model, loading it where needed; `on_progress` hears of the loading.

        Raises: ServerBusyError where too many wait already, or where a request that is not interactive would have to
        make room for its model at the cost of one that people use; what made loading fail.
        """
        if self.is_stopping:
            raise RunnerError("the server is shutting down")
        granted = asyncio.get_running_loop().create_future()
        waiter = _Waiter(want, keep_alive_ns, granted, on_progress, is_interactive)
        tally = self._tallies.asked_for(want.model.name)
        self._pending.append(waiter)
        self._dispatch()
        n_waiting = sum(other.is_interactive for other in self._pending)
        if is_interactive and waiter in self._pending and n_waiting > self._max_queue:
            self._pending.remove(waiter)
            tally.refusals += 1
            raise ServerBusyError(BUSY)
        try:
            return Lease(self, await waiter.granted, waiter)
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise

    def _abandon(self, waiter: _Waiter) -> None:
        if waiter in self._pending:
            self._pending.remove(waiter)
            self._dispatch()
        elif waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.exception() is None:
            self._release(waiter.granted.result(), waiter.is_interactive)

    def running(self) -> list[RunningModel]:
        """The models that are loaded, those that stay longest first."""
        models = [
            RunningModel(
                resident.want.model,
                resident.ready.memory_bytes,
                resident.expires_at_ns(),
                resident.ready.n_ctx,
                resident.active,
                resident.pid,
            )
            for resident in self._residents.values()
            if resident.state is State.READY
        ]
        return sorted(models, key=lambda running: running.expires_at_ns, reverse=True)

    async def unload(self, key: ModelKey) -> bool:
        """Unload a model: at once where it is idle, else when its requests have ended. False where it is not loaded.

        A process that was stopped by a signal counts as idle, and its requests end with an error; so do those of a
        process that hangs, after a while.
        """
        resident = self._residents.get(key)
        if resident is None:
            return False
        resident.keep_alive_ns = 0
        resident.hang_timeout_s = UNWANTED_HANG_TIMEOUT_S
        stuck = resident.process is not None and resident.process.is_stopped()
        if resident.state is State.STOPPING or (resident.state is State.READY and (stuck or not resident.active)):
            await self._unload(resident, "request")
        return True

    async def expire(self, digest: str) -> None:
        """Unload the model of a manifest that is gone from the store: now or when its requests have ended."""
        keys = [key for key, resident in self._residents.items() if resident.want.model.digest == digest]
        for key in keys:
            await self.unload(key)

    def forget(self, name: str) -> None:
        """No longer count what happened with a model of this name, which was deleted."""
        self._tallies.forget(name)

    def figures(self) -> dict[str, ModelFigures]:
        """What happened with each model, and how it stands, by its name.

        Weights that several names share are counted under the name that was asked for last.
        """
        waiting = [waiter.want.model.name for waiter in self._pending if not waiter.granted.done()]
        return figures_of(self._tallies, waiting, self._residents.values())

    # The rest is the scheduler's own.

    def _count(self, resident: Resident, figures: Figures) -> None:
        self._tallies.of(resident.want.model.name).add(figures)

    def _first_token(self, waiter: _Waiter) -> None:
        if waiter.is_interactive:
            tally = self._tallies.of(waiter.want.model.name)
            tally.first_token_s.observe(time.monotonic() - waiter.since_s)

    def _dispatch(self) -> None:
        held_back: set[ModelKey] = set()
        for waiter in sorted(self._pending, key=lambda waiter: not waiter.is_interactive):
            if waiter.granted.done():
                self._pending.remove(waiter)
            elif waiter.key not in held_back and not self._try_grant(waiter):
                held_back.add(waiter.key)
        self._changed.set()

    def _try_grant(self, waiter: _Waiter) -> bool:
        resident = self._residents.get(waiter.key)
        if resident is not None and resident.state is State.READY and not resident.is_alive():
            self._forget(resident)
            resident = None
        if resident is None or (resident.state is State.READY and not resident.serves(waiter.want)):
            if resident is not None and not waiter.is_interactive and self._is_wanted(resident):
                self._pending.remove(waiter)
                waiter.granted.set_exception(ServerBusyError(WANTED))
            elif self._load_task is None and (resident is None or not resident.n_waited_for(waiter.is_interactive)):
                self._load_task = asyncio.create_task(self._load(waiter), name="load")
            return False
        n_active = resident.n_waited_for(waiter.is_interactive)
        if resident.state is not State.READY or resident.draining or n_active >= resident.want.num_parallel:
            return False
        self._grant(waiter, resident)
        return True

    def _grant(self, waiter: _Waiter, resident: Resident) -> None:
        self._pending.remove(waiter)
        resident.active += 1
        if waiter.is_interactive:
            resident.used_interactively()
            self._tallies.of(waiter.want.model.name).queue_s.observe(time.monotonic() - waiter.since_s)
            resident.keep_alive_ns = waiter.keep_alive_ns
        else:
            resident.n_background += 1
            resident.keep_alive_ns = max(resident.keep_alive_ns, waiter.keep_alive_ns)
        resident.disarm_expiry()
        resident.adopt(waiter.want)
        waiter.granted.set_result(resident)

    def _release(self, resident: Resident, is_interactive: bool) -> None:
        resident.active -= 1
        if is_interactive:
            resident.used_interactively()
        else:
            resident.n_background -= 1
        self._dispatch()
        if resident.active == 0 and resident.state is State.READY:
            self._start_keep_alive(resident)

    def _start_keep_alive(self, resident: Resident) -> None:
        if resident.keep_alive_ns == 0:
            self._begin_unload(resident)
        else:
            resident.arm_expiry(lambda: self._begin_unload(resident))

    def _begin_unload(self, resident: Resident) -> None:
        if resident.state is State.READY and not resident.active:
            resident.state = State.STOPPING
            self._spawn(self._unload(resident, "keep_alive"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _unload(self, resident: Resident, why: str) -> None:
        logger.info("unloading %s", resident.want.model.name)
        if not resident.is_leaving:
            resident.is_leaving = True
            self._tallies.of(resident.want.model.name).unloads[why] += 1
        await resident.stop()
        self._forget(resident)
        self._dispatch()
        if not self.is_stopping:
            self._spare.prepare()

    def _runner_exited(self, resident: Resident) -> None:
        if resident.has_died:
            self._tallies.of(resident.want.model.name).runner_deaths += 1
        self._forget(resident)
        self._dispatch()

    def _forget(self, resident: Resident) -> None:
        resident.disarm_expiry()
        if self._residents.get(resident.key) is resident:
            del self._residents[resident.key]

    async def _load(self, waiter: _Waiter) -> None:
        want, key = waiter.want, waiter.key
        try:
            old = self._residents.get(key)
            if old is not None:
                want = replace(want, num_ctx=max(want.num_ctx, old.want.num_ctx))
                await self._displace(old, "reload")
            estimate = await asyncio.to_thread(self._estimate_or_raise, want)
            fitted = await self._make_room(waiter, want, estimate)
            resident = Resident(fitted, waiter.keep_alive_ns, self._runner_exited, self._count)
            resident.weights_bytes = estimate.weights_bytes
            self._residents[key] = resident
            started_s = time.monotonic()
            try:
                await resident.load(self._spare, self._load_timeout_s, lambda p: self._tell(key, p))
            except BaseException:
                self._forget(resident)
                raise
            tally = self._tallies.of(want.model.name)
            tally.loads += 1
            tally.load_s.observe(time.monotonic() - started_s)
            logger.info("loaded %s: context %d, runner %d", want.model.name, resident.ready.n_ctx, resident.pid)
            # What was asked for counts in `serves`, or a shrunk context would be reloaded for ever.
            resident.want = replace(fitted, num_ctx=want.num_ctx)
        except LocalLLMError as error:
            logger.error("%s was not loaded: %s", want.model.name, error)
            self._fail_waiters(want, error)
        except Exception as error:
            logger.exception("loading %s failed", want.model.name)
            self._fail_waiters(want, RunnerError(f"loading the model failed: {error}"))
        finally:
            self._load_task = None
            for other in self._residents.values():
                other.draining = False
            if not self.is_stopping:
                self._dispatch()
                self._expire_unwanted(key)

    def _expire_unwanted(self, key: ModelKey) -> None:
        """A model whose clients left while it loaded keeps its keep-alive all the same."""
        resident = self._residents.get(key)
        if resident is not None and resident.state is State.READY and not resident.active:
            self._start_keep_alive(resident)

    def _tell(self, key: ModelKey, progress: Progress) -> None:
        for waiter in self._pending:
            if waiter.key == key and waiter.on_progress is not None:
                waiter.on_progress(progress)

    def _fail_waiters(self, want: LoadRequest, error: LocalLLMError) -> None:
        """Those who asked for the same or more get the error; who asked for less gets a try of its own.

        What is too busy for a request that is not interactive need not be so for others.
        """
        key = model_key(want)
        self._tallies.of(want.model.name).load_failures += not isinstance(error, ServerBusyError)
        for waiter in list(self._pending):
            if waiter.is_interactive and isinstance(error, ServerBusyError):
                continue
            if waiter.key == key and waiter.want.num_ctx >= want.num_ctx:
                self._pending.remove(waiter)
                if not waiter.granted.done():
                    waiter.granted.set_exception(error)

    async def _make_room(self, waiter: _Waiter, want: LoadRequest, estimate: memory.MemoryEstimate) -> LoadRequest:
        """Evict until the model fits in number and memory; returns `want`, with a smaller context where only that fits.

        Raises: RunnerError where even an otherwise empty machine is too small; ServerBusyError as `lease`.
        """
        while True:
            others = [resident for resident in self._residents.values() if resident.key != waiter.key]
            # Mapped weights count as available memory, though models in use need them there.
            reserved = sum(resident.weights_bytes for resident in others)
            needed = estimate.total_bytes(estimate.capped(want.num_ctx)) + reserved
            available = self._available_bytes()
            if len(others) < self._max_loaded and needed <= available:
                return replace(want, num_kv=estimate.num_kv(want.num_ctx, want.num_parallel, available - reserved))
            if not others:
                return self._shrink(want, estimate)
            await self._evict(others, waiter)

    def _estimate_or_raise(self, want: LoadRequest) -> memory.MemoryEstimate:
        try:
            return self._estimate(want)
        except OSError as error:
            raise RunnerError(f"the model's files cannot be read: {error}") from error

    async def _evict(self, others: list[Resident], waiter: _Waiter) -> None:
        """Unload the one whose keep-alive is shortest, idle ones first; wait where none is idle.

        What is not interactive counts as idle for what is. Raises: ServerBusyError as `lease`.
        """
        if not waiter.is_interactive:
            others = [resident for resident in others if not resident.active and not self._is_wanted(resident)]
            if not others:
                raise ServerBusyError(WANTED)
        victim = min(others, key=lambda one: (one.n_interactive > 0, one.active > 0, one.keep_alive_ns, one.key[0]))
        if not victim.n_interactive:
            await self._displace(victim, "room")
            return
        victim.draining = True
        self._changed.clear()
        await self._changed.wait()

    def _is_wanted(self, resident: Resident) -> bool:
        waits = any(waiter.is_interactive and waiter.key == resident.key for waiter in self._pending)
        return waits or resident.is_in_interactive_use()

    async def _displace(self, resident: Resident, why: str) -> None:
        """Unload a model for another's sake, or to load it anew; requests that are not interactive end, to be asked
        again."""
        resident.is_preempted = resident.n_background > 0
        await self._unload(resident, why)

    def _shrink(self, want: LoadRequest, estimate: memory.MemoryEstimate) -> LoadRequest:
        available = self._available_bytes()
        n_ctx = want.num_ctx
        while n_ctx > MIN_SHRUNK_CTX and estimate.total_bytes(estimate.capped(n_ctx)) > available:
            n_ctx //= 2
        needed = estimate.total_bytes(estimate.capped(n_ctx))
        if needed > available:
            raise RunnerError(
                f"model requires more system memory ({_gib(needed)}) than is available ({_gib(available)})",
                hint="close other programs, or pick a smaller model or quantization",
            )
        if n_ctx < want.num_ctx:
            logger.warning("%s: context cut from %d to %d to fit memory", want.model.name, want.num_ctx, n_ctx)
        return replace(want, num_ctx=n_ctx, num_kv=estimate.capped(n_ctx))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCHDOG_INTERVAL_S)
            for resident in list(self._residents.values()):
                if resident.state is State.READY and resident.is_hung() and resident.process is not None:
                    logger.error("runner %d of %s hangs; ending it", resident.pid, resident.want.model.name)
                    resident.process.kill()


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 30):.1f} GiB"

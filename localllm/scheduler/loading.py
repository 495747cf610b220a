"""Brings a model into memory: what it will take, room for it, its process. One at a time; it grants nobody a turn.

To make room, an idle model goes: the one with the shortest keep-alive, and of these the one used longest ago. Where all
are busy that one is marked as draining: it takes no new requests until the load is over. A model that could not be held
even alone is refused before anything is unloaded for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from localllm.errors import (
    ContextMemoryError,
    LocalLLMError,
    MemoryLimitError,
    RequestCanceledError,
    RunnerError,
    ServerBusyError,
)
from localllm.messages import LoadRequest
from localllm.scheduler import context
from localllm.scheduler.budget import Budget
from localllm.scheduler.context import ContextSize, ContextWish
from localllm.scheduler.memory import MemoryEstimate
from localllm.scheduler.resident import Resident, State, model_key
from localllm.scheduler.residents import Residents
from localllm.scheduler.spare import SpareRunner
from localllm.scheduler.tallies import Tallies
from localllm.scheduler.waiting import Waiter, Waiting

logger = logging.getLogger(__name__)

WANTED = "what would have to be unloaded is in interactive use"


@dataclass(frozen=True)
class LoadingRules:
    """How many models may be in memory, how long one may take without progress (None: for ever), what a model takes
    (`estimate` runs in a thread), and what there is."""

    max_loaded: int
    timeout_s: float | None
    estimate: Callable[[LoadRequest], MemoryEstimate]
    budget: Budget


class Loading:
    """Loads models into `residents` for those who wait. `on_end` is called after each attempt."""

    def __init__(
        self,
        residents: Residents,
        waiting: Waiting,
        spare: SpareRunner,
        tallies: Tallies,
        rules: LoadingRules,
        on_end: Callable[[], None],
    ) -> None:
        self._residents = residents
        self._waiting = waiting
        self._spare = spare
        self._tallies = tallies
        self._rules = rules
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def is_busy(self) -> bool:
        """Whether a model is being loaded."""
        return self._task is not None

    def start(self, waiter: Waiter) -> None:
        """Begin to load what a request wants; `is_busy` until the end."""
        self._tallies.of(waiter.want.model.name).load_started_s = time.monotonic()
        self._task = asyncio.create_task(self._load(waiter), name="load")

    def changed(self) -> None:
        """Requests or models have come or gone: there may be room now."""
        self._changed.set()

    async def stop(self) -> None:
        """Give up what is being loaded."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def is_wanted(self, resident: Resident) -> bool:
        """Whether people use a model, or wait for it."""
        return self._waiting.want(resident.key, only_people=True) or resident.is_in_interactive_use()

    async def default_ctx(self, want: LoadRequest) -> int:
        """As the scheduler's."""
        resident = self._residents.get(model_key(want))
        if resident is not None and resident.state is State.READY and resident.serves(want):
            return resident.ready.n_ctx
        cost = await asyncio.to_thread(self._estimate, want)
        wish = ContextWish(want.num_ctx, is_automatic=not want.num_ctx)
        size = self._fit(wish, cost, want.num_parallel, self._residents.but(model_key(want)))
        return size.num_ctx if size else context.wanted_ctx(wish, cost, self._room_alone())

    async def _load(self, waiter: Waiter) -> None:
        want, key = waiter.want, waiter.key
        try:
            cost = await asyncio.to_thread(self._estimate, want)
            wish = self._possible_wish(waiter, cost)
            if (old := self._residents.get(key)) is not None:
                await self._residents.displace(old, "reload")
            size = await self._make_room(waiter, wish, cost)
            resident = Resident(
                replace(want, num_ctx=size.num_ctx, num_kv=size.num_kv),
                waiter.keep_alive_ns,
                self._residents.exited,
                self._residents.count,
            )
            if not wish.is_automatic:
                resident.automatic_ctx = context.automatic_ctx(cost, self._rules.budget.room(self._residents))
            resident.promised_bytes = cost.total_bytes(size.num_ctx, size.num_kv)
            await self._start(resident)
        except RequestCanceledError:
            logger.info("%s is not loaded: nobody waits for it any more", want.model.name)
        except LocalLLMError as error:
            logger.error("%s was not loaded: %s", want.model.name, error)
            self._fail(want, error)
        except Exception as error:
            logger.exception("loading %s failed", want.model.name)
            self._fail(want, RunnerError(f"loading the model failed: {error}"))
        finally:
            self._task = None
            for other in self._residents:
                other.draining = False
            self._on_end()
            # A model whose clients left while it loaded keeps its keep-alive all the same.
            if (loaded := self._residents.get(key)) is not None:
                self._residents.start_keep_alive(loaded)

    async def _start(self, resident: Resident) -> None:
        self._residents.add(resident)
        started_s, name = time.monotonic(), resident.want.model.name
        try:
            await resident.load(
                self._spare, self._rules.timeout_s, lambda progress: self._waiting.tell(resident.key, progress)
            )
        except BaseException:
            self._residents.forget(resident)
            raise
        tally = self._tallies.of(name)
        tally.loads += 1
        tally.load_s.observe(time.monotonic() - started_s)
        sizes = resident.ready.n_ctx, resident.want.num_kv, resident.pid
        logger.info("loaded %s: context %d, KV cache of %d tokens, runner %d", name, *sizes)

    def _fail(self, want: LoadRequest, error: LocalLLMError) -> None:
        self._tallies.of(want.model.name).load_failures += not isinstance(error, ServerBusyError)
        self._waiting.fail_load(want, error)

    def _estimate(self, want: LoadRequest) -> MemoryEstimate:
        try:
            return self._rules.estimate(want)
        except OSError as error:
            raise RunnerError(f"the model's files cannot be read: {error}") from error

    # ------------------------------------------------------------------ room

    def _possible_wish(self, waiter: Waiter, cost: MemoryEstimate) -> ContextWish:
        """What a request wants, and where that can be had what the model had for others before.

        Raises: MemoryLimitError where not even an otherwise empty machine has it.
        """
        want, old = waiter.want, self._residents.get(waiter.key)
        own = ContextWish(want.num_ctx, is_automatic=not want.num_ctx)
        if old is not None:
            was_automatic = not old.automatic_ctx
            shared = ContextWish(max(want.num_ctx, old.ready.n_ctx), own.is_automatic or was_automatic)
            if self._is_possible(shared, cost):
                return shared
        if not self._is_possible(own, cost):
            raise self._refusal(own, cost)
        return own

    def _is_possible(self, wish: ContextWish, cost: MemoryEstimate) -> bool:
        num_ctx = context.shortest_ctx(wish, cost)
        return cost.total_bytes(num_ctx, num_ctx) <= self._room_alone()

    def _room_alone(self) -> int:
        return self._rules.budget.room((), leaving=self._residents)

    async def _make_room(self, waiter: Waiter, wish: ContextWish, cost: MemoryEstimate) -> ContextSize:
        """Evict until the model fits in number and memory. Raises: as `_possible_wish`; ServerBusyError where others'
        models would have to go for a request that is not interactive; RequestCanceledError where nobody waits."""
        while True:
            others = self._residents.but(waiter.key)
            if size := self._fit(wish, cost, waiter.want.num_parallel, others):
                return size
            if not self._is_possible(wish, cost) or not others:
                raise self._refusal(wish, cost)
            await self._evict(others, waiter)

    def _fit(
        self, wish: ContextWish, cost: MemoryEstimate, num_parallel: int, others: list[Resident]
    ) -> ContextSize | None:
        """The sizes beside all others, None where one of them should go. An automatic context becomes shorter for the
        sake of busy models, but for idle ones not below what is comfortable."""
        if len(others) >= self._rules.max_loaded:
            return None
        budget = self._rules.budget
        size = context.fit(wish, cost, budget.room(others), num_parallel)
        busy, idle = ([one for one in others if (one.active > 0) is is_busy] for is_busy in (True, False))
        if size is None or not idle:
            return size
        longest = context.wanted_ctx(wish, cost, budget.room(busy, leaving=idle))
        return size if size.num_ctx >= min(longest, context.COMFORTABLE_CTX) else None

    async def _evict(self, others: list[Resident], waiter: Waiter) -> None:
        """Unload one; wait where none is idle. What is not interactive counts as idle for what is.

        Raises: as `_make_room`.
        """
        if not waiter.is_interactive:
            others = [resident for resident in others if not resident.active and not self.is_wanted(resident)]
            if not others:
                raise ServerBusyError(WANTED)
        victim = min(
            others, key=lambda one: (one.n_interactive > 0, one.active > 0, one.keep_alive_ns, one.idle_since_ns)
        )
        if not victim.n_interactive:
            await self._residents.displace(victim, "room")
            return
        victim.draining = True
        self._changed.clear()
        await self._changed.wait()
        if not self._waiting.want(waiter.key):
            raise RequestCanceledError("nobody waits for the model any more")

    def _refusal(self, wish: ContextWish, cost: MemoryEstimate) -> MemoryLimitError:
        room, num_ctx = self._room_alone(), context.shortest_ctx(wish, cost)
        needed = cost.total_bytes(num_ctx, num_ctx)
        held = ", ".join(f"{one.want.model.name} {_size(one.promised_bytes)}" for one in self._residents)
        kv_bytes = int(num_ctx * cost.kv_bytes_per_token)
        text = (
            f"model requires more system memory ({_size(needed)}) than is available ({_size(room)}): "
            f"weights {_size(cost.weights_bytes)}, KV cache for {num_ctx} tokens {_size(kv_bytes)}, "
            f"workspace {_size(needed - cost.weights_bytes - kv_bytes)}; "
            f"all models may take {_size(self._rules.budget.total_bytes())}"
        ) + (f", in memory now: {held}" if held else "")
        longest = context.longest_fitting(cost, room)
        if not wish.is_automatic and longest > 0:
            return ContextMemoryError(
                f"{text}; the largest num_ctx that fits is {longest}",
                *(needed, room),
                hint=f"set num_ctx to at most {longest}, or kv_cache_type to q8_0 or q4_0",
            )
        return MemoryLimitError(
            *(text, needed, room),
            hint="close other programs, raise LOCALLLM_MAX_MEMORY, or pick a smaller model or quantization",
        )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 30):.1f} GiB" if abs(n_bytes) >= 1 << 30 else f"{n_bytes / (1 << 20):.0f} MiB"

"""Brings a model into memory: what it will take, room for it, its process. One at a time; it grants nobody a turn.

To make room, an idle model goes: the one with the shortest keep-alive, and of these the one used longest ago. Where all
are busy that one is marked as draining: it takes no new requests until the load is over. Meanwhile others may be loaded
that leave room for it. A model that could not be held even alone is refused before anything is unloaded for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from localllm.errors import (
    ContextMemoryError,
    LocalLLMError,
    MemoryLimitError,
    RequestCanceledError,
    RunnerError,
    ServerBusyError,
)
from localllm.gguf.drafts import check_draft
from localllm.gguf.parts import open_parts
from localllm.messages import LoadRequest, ModelSpec
from localllm.scheduler import context
from localllm.scheduler.budget import Budget
from localllm.scheduler.context import ContextSize, ContextWish
from localllm.scheduler.memory import MemoryEstimate
from localllm.scheduler.resident import ModelKey, Resident, State, model_key
from localllm.scheduler.residents import Residents
from localllm.scheduler.spare import SpareRunner
from localllm.scheduler.tallies import Tallies, Tally
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


@dataclass(frozen=True)
class _Parked:
    """A load that waits for models to become idle, and the bytes that it waits for."""

    task: asyncio.Task[None]
    key: ModelKey
    needed_bytes: int


class _AfterParkedError(Exception):
    """There is no room before the load that waits has had its own."""


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
        self._parked: _Parked | None = None
        self._goes_on = False  # the parked load wants to be the one that is being loaded
        self._after_parked: set[ModelKey] = set()
        self._changed = asyncio.Event()

    def offer(self, waiters: list[Waiter]) -> None:
        """Begin to load for one of the requests, unless a model is being loaded: people's first, and of these the model
        whose last load is longest ago."""
        if self._parked is not None:
            waiters = [waiter for waiter in waiters if self._may_pass(waiter.key)]
        if waiters and self._task is None and not self._goes_on:
            waiter = min(waiters, key=lambda one: (not one.is_interactive, self._tally(one.want).load_started_s))
            self._task = asyncio.create_task(self._load(waiter), name="load")

    def _may_pass(self, key: ModelKey) -> bool:
        """Whether a model might be loaded while another load waits."""
        assert self._parked is not None
        return key not in (self._parked.key, *self._after_parked) and self._residents.get(key) is None

    def changed(self) -> None:
        """Requests or models have come or gone: there may be room now."""
        self._changed.set()

    async def stop(self) -> None:
        """Give up what is being loaded."""
        for task in (self._task, self._parked.task if self._parked else None):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

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
            if want.draft is not None:
                await asyncio.to_thread(_check_draft, want.model, want.draft)
            if (old := self._residents.get(key)) is not None:
                await self._residents.displace(old, "reload")
            size = await self._make_room(waiter, wish, cost)
            resident = Resident(
                replace(want, num_ctx=size.num_ctx, num_kv=size.num_kv),
                waiter.keep_alive_ns,
                self._residents.exited,
                self._residents.count,
            )
            resident.asked_ctx = wish.num_ctx
            if not wish.is_automatic:
                resident.automatic_ctx = context.automatic_ctx(cost, self._rules.budget.room(self._residents))
            resident.promised_bytes = cost.total_bytes(size.num_ctx, size.num_kv)
            await self._start(resident)
        except _AfterParkedError:
            self._after_parked.add(key)
        except RequestCanceledError:
            logger.info("%s is not loaded: nobody waits for it any more", want.model.name)
        except LocalLLMError as error:
            logger.error("%s was not loaded: %s", want.model.name, error)
            self._fail(want, error)
        except Exception as error:
            logger.exception("loading %s failed", want.model.name)
            self._fail(want, RunnerError(f"loading the model failed: {error}"))
        finally:
            self._finish()
            self._on_end()
            # A model whose clients left while it loaded keeps its keep-alive all the same.
            if (loaded := self._residents.get(key)) is not None:
                self._residents.start_keep_alive(loaded)

    def _finish(self) -> None:
        """The end of the running task's load; what was draining for it takes requests again."""
        task = asyncio.current_task()
        is_parked = self._parked is not None and self._parked.task is task
        if is_parked or self._parked is None:
            self._parked, self._goes_on = None, False
            self._after_parked.clear()
            for other in self._residents:
                other.draining = False
        if self._task is task:
            self._task = None

    async def _start(self, resident: Resident) -> None:
        self._residents.add(resident)
        tally, name, started_s = self._tally(resident.want), resident.want.model.name, time.monotonic()
        tally.load_started_s = started_s
        try:
            await resident.load(
                self._spare, self._rules.timeout_s, lambda progress: self._waiting.tell(resident.key, progress)
            )
        except BaseException:
            self._residents.forget(resident)
            raise
        tally.loads += 1
        tally.load_s.observe(time.monotonic() - started_s)
        sizes = resident.ready.n_ctx, resident.want.num_kv, resident.pid
        logger.info("loaded %s: context %d, KV cache of %d tokens, runner %d", name, *sizes)

    def _fail(self, want: LoadRequest, error: LocalLLMError) -> None:
        self._tally(want).load_failures += not isinstance(error, ServerBusyError)
        self._waiting.fail_load(want, error)

    def _tally(self, want: LoadRequest) -> Tally:
        return self._tallies.of(want.model.name)

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
            if self._parked is not None:
                raise _AfterParkedError
            num_ctx = context.shortest_ctx(wish, cost)
            needed_bytes = cost.total_bytes(num_ctx, num_ctx)
            if self._will_be_room(others, needed_bytes) or await self._evict(others, waiter):
                await self._wait_for_change(waiter, needed_bytes)

    def _fit(
        self, wish: ContextWish, cost: MemoryEstimate, num_parallel: int, others: list[Resident]
    ) -> ContextSize | None:
        """The sizes beside all others, None where one of them should go. An automatic context becomes shorter for the
        sake of busy models, but for idle ones not below what is comfortable."""
        budget = self._rules.budget
        room = budget.room(others)
        n_others = len(others)
        if self._parked is not None:
            staying, draining = ([one for one in others if one.draining is drains] for drains in (False, True))
            room = min(room, budget.room(staying, leaving=draining) - self._parked.needed_bytes)
            n_others = max(n_others, len(staying) + 1)
        if n_others >= self._rules.max_loaded:
            return None
        size = context.fit(wish, cost, room, num_parallel)
        busy, idle = ([one for one in others if (one.active > 0) is is_busy] for is_busy in (True, False))
        if size is None or not idle:
            return size
        longest = context.wanted_ctx(wish, cost, budget.room(busy, leaving=idle))
        return size if size.num_ctx >= min(longest, context.COMFORTABLE_CTX) else None

    def _will_be_room(self, others: list[Resident], needed_bytes: int) -> bool:
        """Whether there is room once models have gone that take no more requests, and are still busy."""
        staying, draining = ([one for one in others if one.draining is drains] for drains in (False, True))
        if not draining or not all(one.n_interactive for one in draining):
            return False
        room = self._rules.budget.room(staying, leaving=draining)
        return len(staying) < self._rules.max_loaded and needed_bytes <= room

    async def _evict(self, others: list[Resident], waiter: Waiter) -> bool:
        """Unload one; where none is idle, let one take no more requests: that is to be waited for, as the result says.

        What is not interactive counts as idle for what is.

        Raises: as `_make_room`.
        """
        if not waiter.is_interactive:
            others = [resident for resident in others if not resident.active and not self.is_wanted(resident)]
            if not others:
                raise ServerBusyError(WANTED)
        victim = min(others, key=_goes_late)
        victim.draining = victim.n_interactive > 0
        if not victim.draining:
            await self._residents.displace(victim, "room")
        return victim.draining

    async def _wait_for_change(self, waiter: Waiter, needed_bytes: int) -> None:
        """Wait, letting others load meanwhile what leaves so much room. Raises: as `_make_room`."""
        assert self._task is not None
        self._parked, self._task = _Parked(self._task, waiter.key, needed_bytes), None
        self._on_end()
        self._changed.clear()
        await self._changed.wait()
        self._goes_on = True
        while self._task is not None:
            self._changed.clear()
            await self._changed.wait()
        self._task, self._parked, self._goes_on = self._parked.task, None, False
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


def _goes_late(resident: Resident) -> tuple[bool, bool, bool, int, int]:
    """What of two models to unload the other first for."""
    is_busy = resident.n_interactive > 0, resident.active > 0
    return *is_busy, not resident.draining, resident.keep_alive_ns, resident.idle_since_ns


def _check_draft(model: ModelSpec, draft: ModelSpec) -> None:
    """Refuse a draft model that does not fit before anything is unloaded for it. Raises: OptionError, GGUFError."""
    with contextlib.ExitStack() as stack:
        parts = [open_parts([Path(path) for path in spec.model_paths]) for spec in (model, draft)]
        for header in itertools.chain(*parts):
            stack.callback(header.close)
        check_draft(model.name, parts[0][0].metadata, draft.name, parts[1][0].metadata)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 30):.1f} GiB" if abs(n_bytes) >= 1 << 30 else f"{n_bytes / (1 << 20):.0f} MiB"

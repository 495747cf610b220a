"""The models in memory: who they are, when their keep-alive ends, how they are unloaded; it does not load any."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from localllm.messages import Figures, ModelSpec
from localllm.scheduler.resident import ModelKey, Resident, State
from localllm.scheduler.spare import SpareRunner
from localllm.scheduler.tallies import Tallies

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunningModel:
    """A loaded model as others may see it. `expires_at_ns` is Unix time, centuries away for never."""

    model: ModelSpec
    size_bytes: int
    expires_at_ns: int
    n_ctx: int
    active: int
    pid: int
    kv_cache_type: str = "f16"


class Residents:
    """By their keys. `on_change` is called whenever one has gone; after each unloading the spare runner is renewed."""

    def __init__(self, spare: SpareRunner, tallies: Tallies, on_change: Callable[[], None]) -> None:
        self._spare = spare
        self._tallies = tallies
        self._on_change = on_change
        self._by_key: dict[ModelKey, Resident] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def __iter__(self) -> Iterator[Resident]:
        return iter(list(self._by_key.values()))

    def get(self, key: ModelKey) -> Resident | None:
        """The model of a key, None where it is not in memory."""
        return self._by_key.get(key)

    def but(self, key: ModelKey) -> list[Resident]:
        """All others."""
        return [resident for resident in self if resident.key != key]

    def add(self, resident: Resident) -> None:
        """A model that is to be loaded."""
        self._by_key[resident.key] = resident

    def forget(self, resident: Resident) -> None:
        """A model that is no longer there."""
        resident.disarm_expiry()
        if self._by_key.get(resident.key) is resident:
            del self._by_key[resident.key]

    def running(self) -> list[RunningModel]:
        """Those that are loaded, those that stay longest first."""
        models = [
            RunningModel(
                resident.want.model,
                resident.ready.memory_bytes,
                resident.expires_at_ns(),
                resident.ready.n_ctx,
                resident.active,
                resident.pid,
                resident.want.kv_cache_type,
            )
            for resident in self
            if resident.state is State.READY
        ]
        return sorted(models, key=lambda running: running.expires_at_ns, reverse=True)

    def count(self, resident: Resident, figures: Figures) -> None:
        """Note what a model's process has counted."""
        self._tallies.of(resident.want.model.name).add(figures)

    def start_keep_alive(self, resident: Resident) -> None:
        """Nobody uses the model any more: it stays as long as its keep-alive says."""
        if resident.state is not State.READY or resident.active:
            return
        if resident.keep_alive_ns == 0:
            self._expire(resident)
        else:
            resident.arm_expiry(lambda: self._expire(resident))

    def _expire(self, resident: Resident) -> None:
        if resident.state is State.READY and not resident.active:
            resident.state = State.STOPPING
            self._spawn(self.unload(resident, "keep_alive"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def unload(self, resident: Resident, why: str) -> None:
        """End the model's process, within a bounded time; requests that run end with an error."""
        logger.info("unloading %s", resident.want.model.name)
        if not resident.is_leaving:
            resident.is_leaving = True
            self._tallies.of(resident.want.model.name).unloads[why] += 1
        await resident.stop()
        self.forget(resident)
        self._on_change()
        if not self._is_stopping:
            self._spare.prepare()

    async def displace(self, resident: Resident, why: str) -> None:
        """Unload a model for another's sake, or to load it anew; requests that are not interactive end, to be asked
        again."""
        resident.is_preempted = resident.n_background > 0
        await self.unload(resident, why)

    def exited(self, resident: Resident) -> None:
        """The process of a model has ended, whatever the reason."""
        if resident.has_died:
            self._tallies.of(resident.want.model.name).runner_deaths += 1
        self.forget(resident)
        self._on_change()

    async def stop(self) -> None:
        """Unload everything, within a bounded time."""
        self._is_stopping = True
        await asyncio.gather(*(self.unload(resident, "shutdown") for resident in self))
        await asyncio.gather(*self._tasks, return_exceptions=True)

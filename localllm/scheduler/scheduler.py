"""Gives requests a loaded model each: who has a turn, and what is loaded next.

It knows nothing of HTTP, and passes requests and answers on without looking at their content.

Requests wait in one list (`waiting.py`). `_dispatch` walks it after every change and grants what can be granted, in
order of arrival; a request that cannot be holds back later ones for the same model, so that one which needs a reload is
never starved by others that do not, while other loaded models go on being served. At most one model loads at a time
(`loading.py`): of those that are waited for, the one whose last load is longest ago, so that models which do not fit
together take turns.

Requests that are not interactive come after all that are. They take no place of theirs on a model, and no model that
people use makes room for one of theirs; the reverse does, at once, and its requests fail with ServerBusyError: to be
asked again later.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from localllm.errors import RunnerError, ServerBusyError
from localllm.messages import LoadRequest, Progress
from localllm.scheduler import memory
from localllm.scheduler.budget import Budget, budget_of_machine
from localllm.scheduler.figures import ModelFigures, figures_of
from localllm.scheduler.lease import Lease, Terms
from localllm.scheduler.loading import WANTED, Loading, LoadingRules
from localllm.scheduler.resident import UNWANTED_HANG_TIMEOUT_S, ModelKey, Resident, State
from localllm.scheduler.residents import Residents, RunningModel
from localllm.scheduler.spare import SpareRunner
from localllm.scheduler.tallies import Tallies
from localllm.scheduler.waiting import Waiter, Waiting

logger = logging.getLogger(__name__)

RUNNER_COMMAND = (sys.executable, "-m", "localllm.runner")
DEFAULT_MAX_LOADED_MODELS = 3
WATCHDOG_INTERVAL_S = 5.0


class Scheduler:
    """The resident models of this machine. All methods belong to one event loop.

    `command` starts a runner; with `keep_spare` one is started ahead, at first and after each unloading;
    `max_loaded_models` 0 chooses; `load_timeout_s` None waits for ever; `estimate` says what a model takes (in a
    thread), `budget` what there is (None: this machine's).
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
        budget: Budget | None = None,
    ) -> None:
        self._tallies = Tallies()
        self._spare = SpareRunner(tuple(command), env, keep_spare)
        self._residents = Residents(self._spare, self._tallies, self._dispatch)
        self._waiting = Waiting(max_queue, self._tallies)
        rules = LoadingRules(
            max_loaded_models or DEFAULT_MAX_LOADED_MODELS, load_timeout_s, estimate, budget or budget_of_machine()
        )
        self._loading = Loading(self._residents, self._waiting, self._spare, self._tallies, rules, self._dispatch)
        self._watchdog: asyncio.Task[None] | None = None
        self.is_stopping = False

    async def start(self) -> None:
        """Begin to watch over the runners."""
        self._watchdog = asyncio.create_task(self._watch(), name="scheduler watchdog")
        self._spare.prepare()

    async def stop(self) -> None:
        """Unload everything, within a bounded time; requests that run or wait end with an error."""
        self.is_stopping = True
        self._waiting.fail_all(RunnerError("the server is shutting down"))
        if self._watchdog is not None:
            self._watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watchdog
        await self._loading.stop()
        await self._residents.stop()
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
        granted = asyncio.get_running_loop().create_future()
        waiter = Waiter(want, keep_alive_ns, granted, on_progress, is_interactive)

        async def lease_again() -> Resident:
            again = asyncio.get_running_loop().create_future()
            return await self._turn(Waiter(want, keep_alive_ns, again, None, is_interactive))

        terms = Terms(
            is_interactive,
            release=lambda resident: self._release(resident, is_interactive),
            lease_again=lease_again,
            first_token=lambda: self._first_token(waiter),
            may_retry=lambda: not self.is_stopping,
        )
        return Lease(await self._turn(waiter), terms)

    async def _turn(self, waiter: Waiter) -> Resident:
        if self.is_stopping:
            raise RunnerError("the server is shutting down")
        self._tallies.asked_for(waiter.want.model.name)
        self._waiting.add(waiter)
        self._dispatch()
        self._waiting.make_room(waiter)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise

    def _abandon(self, waiter: Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            self._dispatch()
        elif waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.exception() is None:
            self._release(waiter.granted.result(), waiter.is_interactive)

    def running(self) -> list[RunningModel]:
        """The models that are loaded, those that stay longest first."""
        return self._residents.running()

    async def default_ctx(self, want: LoadRequest) -> int:
        """The context in which `want` is served: that of the model in memory where that will do, or the one it would
        be loaded with. Raises: GGUFError, RunnerError: its files cannot be read.
        """
        return await self._loading.default_ctx(want)

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
            await self._residents.unload(resident, "request")
        return True

    async def expire(self, digest: str) -> None:
        """Unload the model of a manifest that is gone from the store: now or when its requests have ended."""
        for resident in self._residents:
            if resident.want.model.digest == digest:
                await self.unload(resident.key)

    def forget(self, name: str) -> None:
        """No longer count what happened with a model of this name, which was deleted."""
        self._tallies.forget(name)

    def figures(self) -> dict[str, ModelFigures]:
        """What happened with each model, and how it stands, by its name.

        Weights that several names share are counted under the name that was asked for last.
        """
        return figures_of(self._tallies, self._waiting.names(), self._residents)

    # The rest is the scheduler's own.

    def _first_token(self, waiter: Waiter) -> None:
        if waiter.is_interactive:
            tally = self._tallies.of(waiter.want.model.name)
            tally.first_token_s.observe(time.monotonic() - waiter.since_s)

    def _dispatch(self) -> None:
        if self.is_stopping:
            return
        held_back: set[ModelKey] = set()
        to_load: list[Waiter] = []
        for waiter in self._waiting:
            if waiter.granted.done():
                self._waiting.remove(waiter)
            elif waiter.key not in held_back and not self._try_grant(waiter, to_load):
                held_back.add(waiter.key)
        self._loading.offer(to_load)
        self._loading.changed()

    def _try_grant(self, waiter: Waiter, to_load: list[Waiter]) -> bool:
        """Give a request its turn, if that can be; else it is put among those `to_load` where that would help."""
        resident = self._residents.get(waiter.key)
        if resident is not None and resident.state is State.READY and not resident.is_alive():
            self._residents.forget(resident)
            resident = None
        if resident is None or (resident.state is State.READY and not resident.serves(waiter.want)):
            if resident is not None and not waiter.is_interactive and self._loading.is_wanted(resident):
                self._waiting.fail(waiter, ServerBusyError(WANTED))
            elif resident is None or not resident.n_waited_for(waiter.is_interactive):
                to_load.append(waiter)
            return False
        n_active = resident.n_waited_for(waiter.is_interactive)
        if resident.state is not State.READY or resident.draining or n_active >= resident.want.num_parallel:
            return False
        self._grant(waiter, resident)
        return True

    def _grant(self, waiter: Waiter, resident: Resident) -> None:
        self._waiting.remove(waiter)
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
        self._residents.start_keep_alive(resident)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCHDOG_INTERVAL_S)
            for resident in self._residents:
                if resident.state is State.READY and resident.is_hung() and resident.process is not None:
                    logger.error("runner %d of %s hangs; ending it", resident.pid, resident.want.model.name)
                    resident.process.kill()

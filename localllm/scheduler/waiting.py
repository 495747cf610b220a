"""The requests that wait for their turn, and how many may; it does not know what they wait for.

There is one queue, in order of arrival, with one limit. Models share it: where it is full, a request for a model of
which fewer wait than of another takes the place of that one's latest, so that a flood of requests for one model is
refused, and not what comes for others meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from localllm.errors import LocalLLMError, ServerBusyError
from localllm.messages import LoadRequest, Progress
from localllm.scheduler.context import MIN_AUTOMATIC_CTX
from localllm.scheduler.resident import ModelKey, Resident, model_key
from localllm.scheduler.tallies import Tallies

BUSY = "server busy, please try again.  maximum pending requests exceeded"


@dataclass(eq=False)
class Waiter:
    """A request that wants a model, and where it is told that it has one."""

    want: LoadRequest
    keep_alive_ns: int
    granted: asyncio.Future[Resident]
    on_progress: Callable[[Progress], None] | None = None
    is_interactive: bool = True
    since_s: float = field(default_factory=time.monotonic)
    key: ModelKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = model_key(self.want)


class Waiting:
    """The queue. At most `limit` requests of people wait in it; others are not counted."""

    def __init__(self, limit: int, tallies: Tallies) -> None:
        self._limit = limit
        self._tallies = tallies
        self._waiters: list[Waiter] = []

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._waiters

    def __iter__(self) -> Iterator[Waiter]:
        """In the order in which turns are given: people first. The queue may change meanwhile."""
        return iter(sorted(self._waiters, key=lambda waiter: not waiter.is_interactive))

    def names(self) -> list[str]:
        """A name of a model for each request."""
        return [waiter.want.model.name for waiter in self._waiters if not waiter.granted.done()]

    def add(self, waiter: Waiter) -> None:
        """At the end; `make_room` says afterwards whether it may stay."""
        self._waiters.append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """It no longer waits."""
        self._waiters.remove(waiter)

    def make_room(self, newcomer: Waiter) -> None:
        """Refuse one request where more wait than may. Raises: ServerBusyError where that is the newcomer."""
        people = [waiter for waiter in self._waiters if waiter.is_interactive]
        if not newcomer.is_interactive or newcomer not in self._waiters or len(people) <= self._limit:
            return
        n_waiting = Counter(waiter.key for waiter in people)
        most = max(n_waiting, key=n_waiting.__getitem__)
        refused = newcomer
        if n_waiting[most] > n_waiting[newcomer.key]:
            refused = next(waiter for waiter in reversed(people) if waiter.key == most)
        self._tallies.of(refused.want.model.name).refusals += 1
        if refused is newcomer:
            self._waiters.remove(newcomer)
            raise ServerBusyError(BUSY)
        self.fail(refused, ServerBusyError(BUSY))

    def fail(self, waiter: Waiter, error: LocalLLMError) -> None:
        """Tell a request that it will not have its turn."""
        self._waiters.remove(waiter)
        if not waiter.granted.done():
            waiter.granted.set_exception(error)

    def fail_all(self, error: LocalLLMError) -> None:
        """Tell every request so."""
        for waiter in list(self._waiters):
            self.fail(waiter, error)

    def fail_load(self, want: LoadRequest, error: LocalLLMError) -> None:
        """Loading failed: who asked for the same or more gets the error, who asked for less gets a try of its own.

        What is too busy for a request that is not interactive need not be so for others.
        """
        key, asked = model_key(want), want.num_ctx or MIN_AUTOMATIC_CTX
        for waiter in list(self._waiters):
            if waiter.is_interactive and isinstance(error, ServerBusyError):
                continue
            is_as_much = (waiter.want.num_ctx or MIN_AUTOMATIC_CTX) >= asked
            if waiter.key == key and is_as_much and waiter.want.kv_cache_type == want.kv_cache_type:
                self.fail(waiter, error)

    def tell(self, key: ModelKey, progress: Progress) -> None:
        """Pass on how far loading a model is."""
        for waiter in self._waiters:
            if waiter.key == key and waiter.on_progress is not None:
                waiter.on_progress(progress)

    def want(self, key: ModelKey, *, only_people: bool = False) -> bool:
        """Whether any request waits for a model."""
        return any(waiter.key == key and (waiter.is_interactive or not only_people) for waiter in self._waiters)

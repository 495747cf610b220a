"""How much memory is left for another model, all promises kept; it knows nothing of what models are for.

A model's KV cache is memory that nobody has until it is written to. So what models were promised counts, less what
they have already, which the machine counts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from localllm import env
from localllm.scheduler.machine import Machine, touched_bytes

SPARE_BYTES = 70 << 20
"""A runner that waits for its first model."""


class Promise(Protocol):
    """A model in memory, as the budget sees it."""

    @property
    def promised_bytes(self) -> int: ...

    @property
    def pid(self) -> int: ...


@dataclass(frozen=True)
class Budget:
    """`total_bytes`: all models together at most; `available_bytes`: what the machine has now; `touched_bytes`: what a
    process has of its own already."""

    total_bytes: Callable[[], int]
    available_bytes: Callable[[], int]
    touched_bytes: Callable[[int], int] = touched_bytes

    def room(self, staying: Iterable[Promise], leaving: Iterable[Promise] = ()) -> int:
        """Bytes for another model beside those that stay, once those that leave have gone."""
        promised = untouched = 0
        for model in staying:
            promised += model.promised_bytes
            untouched += max(0, model.promised_bytes - self.touched_bytes(model.pid))
        freed = sum(self.touched_bytes(model.pid) for model in leaving)
        return min(self.total_bytes() - promised, self.available_bytes() + freed - untouched)


def budget_of_machine(machine: Machine | None = None) -> Budget:
    """The share of this machine's memory that LOCALLLM_MAX_MEMORY leaves to models, without a runner in reserve."""
    machine = machine or Machine()
    return Budget(lambda: env.max_memory(machine.total_bytes()) - SPARE_BYTES, machine.available_bytes)

"""How things stand with each model, for whoever watches the daemon; it knows nothing of how that is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from localllm.messages import Levels
from localllm.scheduler.resident import Resident, State
from localllm.scheduler.tallies import Tallies, Tally


@dataclass
class Memory:
    """A model in memory: requests that have their turn, bytes, and what its runner said last."""

    running: int = 0
    memory_bytes: int = 0
    levels: list[Levels] = field(default_factory=list)


@dataclass
class ModelFigures:
    """One model's: requests that wait for their turn, what happened, and its place in memory, if it has one.

    Several processes may have a model of one name, whose manifest has changed; their figures are added.
    """

    tally: Tally
    waiting: int = 0
    memory: Memory | None = None


def figures_of(tallies: Tallies, waiting: Iterable[str], residents: Iterable[Resident]) -> dict[str, ModelFigures]:
    """By the names of models; `waiting` has a name for each request that waits."""
    waiting, residents = list(waiting), list(residents)
    tallies.prune([*waiting, *(resident.want.model.name for resident in residents)])
    figures = {name: ModelFigures(tally) for name, tally in tallies.items()}
    for name in waiting:
        figures[name].waiting += 1
    for resident in residents:
        name = resident.want.model.name
        if resident.state is State.READY:
            model = figures.setdefault(name, ModelFigures(tallies.of(name)))
            model.memory = memory = model.memory or Memory()
            memory.running += resident.active
            memory.memory_bytes += resident.ready.memory_bytes
            memory.levels.append(resident.levels)
    return figures

"""Where the steps of a lowering may be left and taken up again: between layers. It knows neither memory nor threads.

A stage is what lies between two such places: as a rule a layer, the first with the embedding, the last with the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from kernels_cpu.fusion import Step
from kernels_cpu.graph import Value

ATTENTION = "attention"


@dataclass(frozen=True, eq=False)
class Cut:
    """A stage ends before the step `index`; `values` are what later steps read of what those before it made."""

    index: int
    values: tuple[Value, ...]


def cuts_of(steps: list[Step]) -> list[Cut]:
    """Between any two attentions the place that the fewest columns cross, as floats and of all rows, if there is one.

    What has been quantised for a product is never kept: there is a place before that.
    """
    attentions = [index for index, step in enumerate(steps) if step.op == ATTENTION]
    crossing = _crossing(steps)
    quantised = _read_by_products(steps)
    found: list[Cut] = []
    for before, after in pairwise(attentions):
        fitting = [
            Cut(index, crossing[index])
            for index in range(before + 1, after + 1)
            if all(value.rows == "n" and quantised.get(value, -1) < index for value in crossing[index])
        ]
        if fitting:
            found.append(min(fitting, key=lambda cut: sum(value.cols for value in cut.values)))
    return found


def _crossing(steps: list[Step]) -> list[tuple[Value, ...]]:
    """For each step the values made before it that it reads, or one after it."""
    last = {value: index for index, step in enumerate(steps) for value in step.inputs}
    crossing: list[tuple[Value, ...]] = []
    alive: list[Value] = []
    for index, step in enumerate(steps):
        alive = [value for value in alive if last[value] >= index]
        crossing.append(tuple(alive))
        alive += [node.output for node in step.nodes.values() if node.output in last]
    return crossing


def _read_by_products(steps: list[Step]) -> dict[Value, int]:
    """For each value that products read the index of the last of them."""
    return {step.nodes["linear"].inputs[0]: index for index, step in enumerate(steps) if step.op == "linear"}

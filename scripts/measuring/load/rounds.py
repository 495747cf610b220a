"""Takes a scenario's figures of all sides in turn, round by round, and compares them; it knows no scenario."""

from __future__ import annotations

import math
import statistics
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Figures = dict[str, float]
Found = dict[str, list[Figures]]
"""The figures of each round, by the side's name."""


@dataclass(frozen=True)
class Must:
    """What a figure has to be: `value` is at least, or else at most, `bound`."""

    what: str
    value: float
    bound: float
    is_floor: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.bound if self.is_floor else self.value <= self.bound

    def record(self) -> dict[str, Any]:
        """For the JSON."""
        return {**asdict(self), "holds": self.holds}

    def line(self) -> str:
        """For people."""
        sign = ">=" if self.is_floor else "<="
        return f"{'ok  ' if self.holds else 'MISS'} {self.what}: {self.value:.3g} (must be {sign} {self.bound:g})"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that so large a share of them does not exceed (nearest rank); NaN of none or NaN."""
    if not values or any(map(math.isnan, values)):
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


async def take(names: Sequence[str], n_rounds: int, run: Callable[[str, int], Awaitable[Figures]]) -> Found:
    """`run(side, round)` for each side and round, one after another; who goes first takes turns."""
    found: Found = {name: [] for name in names}
    for i in range(n_rounds):
        for name in names if i % 2 == 0 else reversed(names):
            found[name].append(await run(name, i))
    return found


def medians(rounds: Iterable[Figures]) -> Figures:
    """Figure by figure."""
    rounds = list(rounds)
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


def ratio(found: Found, name: str) -> float | None:
    """The median over rounds of a figure of ours ÷ theirs; None without a peer."""
    if "theirs" not in found:
        return None
    return statistics.median(a[name] / b[name] for a, b in zip(found["ours"], found["theirs"], strict=True))

"""What happened with each model since the daemon started, by its name; it knows nothing of how that is shown."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from localllm.distribution import Distribution
from localllm.messages import Figures

logger = logging.getLogger(__name__)

KEPT_S = 24 * 3600.0
"""How long the tally of a model is kept that is not in memory."""


@dataclass
class Tally:
    """One model's. `counts` are those of its runners, by the names of `messages.Counts`; `unloads` by their reasons.

    `load_started_s` is when it was last loaded. `queue_s` and `first_token_s` begin when a request asks for the model;
    of the latter there is one for each answer.
    """

    used_s: float
    is_gone: bool = False
    load_started_s: float = 0.0
    loads: int = 0
    load_failures: int = 0
    runner_deaths: int = 0
    refusals: int = 0
    unloads: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    load_s: Distribution = field(default_factory=Distribution)
    queue_s: Distribution = field(default_factory=Distribution)
    first_token_s: Distribution = field(default_factory=Distribution)
    token_gap_s: Distribution = field(default_factory=Distribution)

    def add(self, figures: Figures) -> None:
        """Take what a runner counted; what cannot be right is left out, and logged."""
        try:
            self.token_gap_s.add(figures.token_gaps, figures.token_gaps_s)
        except ValueError as error:
            logger.error("figures of a runner: %s", error)
            return
        self.counts.update(dataclasses.asdict(figures.counts))


class Tallies:
    """A tally for each model that was asked for, until it is deleted or was not used for KEPT_S; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tallies: dict[str, Tally] = {}

    def of(self, name: str) -> Tally:
        """The tally of a model, from now on if need be."""
        tally = self._tallies.setdefault(name, Tally(self._clock()))
        tally.used_s = self._clock()
        return tally

    def asked_for(self, name: str) -> Tally:
        """The same, where the model is known to exist."""
        tally = self.of(name)
        tally.is_gone = False
        return tally

    def forget(self, name: str) -> None:
        """Drop the tally of a deleted model, as soon as nothing uses it."""
        if name in self._tallies:
            self._tallies[name].is_gone = True

    def prune(self, in_use: Iterable[str]) -> None:
        """Drop what is gone or was not used for long, unless it is among the names `in_use`."""
        used = set(in_use)
        oldest_s = self._clock() - KEPT_S
        for name, tally in list(self._tallies.items()):
            if name not in used and (tally.is_gone or tally.used_s < oldest_s):
                del self._tallies[name]

    def items(self) -> Iterator[tuple[str, Tally]]:
        """Names and tallies, sorted by name."""
        yield from sorted(self._tallies.items())

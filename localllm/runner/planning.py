"""Who takes part in a step, and in which order prompts have their turn; it knows nothing of engines or messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple
from weakref import WeakKeyDictionary

from kernels_cpu.graph import PAGE_POSITIONS
from localllm.runner.budget import Part
from localllm.runner.generation import Generation

AGEING = 1.0
"""A prompt that has waited for as long as it takes goes before any that arrives now, however short."""


class Share(NamedTuple):
    """A generation's part in a step: so many of its pending tokens, which may go through so many stages of the model,
    the share of it that they are."""

    generation: Generation
    n: int
    n_stages: int | None = None
    share: float = 1.0

    @property
    def part(self) -> Part:
        assert self.generation.seq is not None
        return Part(len(self.generation.seq), self.n, self.share)

    @property
    def is_staged(self) -> bool:
        """Whether its tokens go through a part of the model only."""
        return self.share < 1


@dataclass
class Plan:
    """One step: whose answers go on, and whose prompts are evaluated."""

    decoding: list[Share] = field(default_factory=list)
    prompts: list[Share] = field(default_factory=list)

    @property
    def shares(self) -> list[Share]:
        return [*self.decoding, *self.prompts]

    def without(self, generation: Generation) -> Plan:
        """The same for all others."""
        decoding, prompts = (
            [share for share in shares if share.generation is not generation]
            for shares in (self.decoding, self.prompts)
        )
        return Plan(decoding, prompts)


@dataclass
class _Arrival:
    number: int
    at_s: float
    n_known: int | None = None


class Order:
    """The shortest prompt first, and the less so the longer others wait: nobody waits for more than what had arrived by
    the time that his own prompt takes. Those that had begun and gave way come before all.

    `seconds_for` is what a prompt, or the rest of one, takes by itself; `clock` gives seconds.
    """

    def __init__(self, seconds_for: Callable[[Part], float], clock: Callable[[], float]) -> None:
        self._seconds_for = seconds_for
        self._clock = clock
        self._numbers = count()
        self._arrivals: WeakKeyDictionary[Generation, _Arrival] = WeakKeyDictionary()

    def arrive(self, generation: Generation) -> None:
        """A new request is there."""
        self._arrivals[generation] = _Arrival(next(self._numbers), self._clock())

    def was_looked_up(self, generation: Generation) -> bool:
        """Whether it is known how much of a request is in the KV cache."""
        return self._arrivals[generation].n_known is not None

    def note_known(self, generation: Generation, n: int) -> None:
        """So many of its tokens are in the KV cache, so that they cost nothing."""
        self._arrivals[generation].n_known = n

    def n_evaluated(self, generation: Generation) -> int:
        """How many of its tokens are in its sequence; as far as is known, where it has none yet."""
        return self._arrivals[generation].n_known or 0 if generation.seq is None else len(generation.seq)

    def youngest(self, generations: Iterable[Generation]) -> Generation:
        """The one that arrived last."""
        return max(generations, key=lambda g: self._arrivals[g].number)

    def sorted(self, generations: Iterable[Generation]) -> list[Generation]:
        """Whose turn is first."""
        now_s = self._clock()
        return sorted(generations, key=lambda g: self._rank(g, now_s))

    def _rank(self, generation: Generation, now_s: float) -> tuple[bool, float, int]:
        arrival = self._arrivals[generation]
        if generation.seq is None and generation.has_started:
            return False, 0.0, arrival.number
        n_before = self.n_evaluated(generation)
        n_left = len(generation.pending) - (n_before if generation.seq is None else 0)
        left_s = self._seconds_for(Part(n_before, max(n_left, 1)))
        return True, left_s - AGEING * (now_s - arrival.at_s), arrival.number


def is_about_to_be_known(generation: Generation, shares: Sequence[Share]) -> bool:
    """Whether others evaluate in this step what a generation that waits begins with, a page or more: after that it will
    find it in the KV cache."""
    tokens = generation.pending
    for other, n, *_ in shares:
        assert other.seq is not None
        n_before = len(other.seq)
        n_page = (n_before // PAGE_POSITIONS + 1) * PAGE_POSITIONS
        if not (n_page <= n_before + n and n_page < len(tokens) and other.adapters.key == generation.adapters.key):
            continue
        n_new = n_page - n_before
        if tokens[n_before:n_page] == other.pending[:n_new] and tuple(tokens[:n_before]) == other.seq.tokens:
            return True
    return False

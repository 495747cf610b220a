"""Takes figures of two sides in turn and compares them; it does not know how a side measures one."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol


@dataclass(frozen=True)
class Figure:
    """Tokens a second of one thing.

    prefill: a prompt of `n` tokens. decode: greedy decoding with `n` tokens in the KV cache. together: `n` sequences
    decoding in one batch, the tokens of all counted.
    """

    kind: Literal["prefill", "decode", "together"]
    n: int
    kv: str


class Side(Protocol):
    """An engine under test."""

    def measure(self, figure: Figure) -> float:
        """Tokens a second, once."""


@dataclass
class Samples:
    """One value a round."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    bandwidth: list[float] = field(default_factory=list)

    def ratio(self) -> float | None:
        """The median over rounds of ours ÷ theirs, taken in the same minute; None without a peer."""
        if not self.theirs:
            return None
        return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    def share(self, bytes_per_token: float) -> float:
        """The median over rounds of ours ÷ what the bandwidth of that moment would allow."""
        pairs = zip(self.ours, self.bandwidth, strict=True)
        return statistics.median(speed * bytes_per_token / bandwidth for speed, bandwidth in pairs)


def take_rounds(
    figures: list[Figure],
    ours: Side,
    theirs: Side | None,
    read_bandwidth: Callable[[], float],
    n_rounds: int,
    report: Callable[[int], None],
) -> dict[Figure, Samples]:
    """Every round takes each figure of both sides, who goes first by turns; `report` is told the rounds done.

    A machine that drifts takes both sides along. Ours is warmed up by taking each figure once unmeasured.
    """
    samples = {figure: Samples() for figure in figures}
    for figure in figures:
        ours.measure(figure)
    for i in range(n_rounds):
        for figure, found in samples.items():
            found.bandwidth.append(read_bandwidth())
            if theirs and i % 2:
                found.theirs.append(theirs.measure(figure))
            found.ours.append(ours.measure(figure))
            if theirs and not i % 2:
                found.theirs.append(theirs.measure(figure))
        report(i + 1)
    return samples

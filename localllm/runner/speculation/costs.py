"""What a step costs by its rows, learned from the steps that were taken; it knows nothing of drafts."""

from __future__ import annotations

from bisect import bisect_right

# Rows of a step and its cost in units of a step of one row, between which costs are interpolated: measured with SmolLM2
# 135M and Gemma 3 270M, and what is believed until steps have been taken.
ROWS = (1, 2, 3, 4, 8, 12, 16, 20, 24, 32, 48, 64)
COSTS = (1.0, 1.06, 1.5, 1.75, 3.3, 4.5, 5.0, 6.7, 7.7, 9.3, 13.2, 16.6)
# How fast the speed of the machine is followed, which others use too, and how fast the costs by rows relative to it.
SPEED_RATE = 0.25
COST_RATE = 0.05
# One time says no more than that the cost is so many times another.
MAX_RATIO = 2.0
# No step takes less; a clock may show less.
MIN_S = 1e-6


class StepCosts:
    """Costs in units of what a step of one row was believed to cost; only their ratios mean anything."""

    def __init__(self) -> None:
        self._costs = list(COSTS)
        self._unit_s = 0.0

    def of(self, n_rows: int) -> float:
        """The cost of a step of so many rows."""
        i, share = _place(n_rows)
        return self._costs[i] + share * (self._costs[i + 1] - self._costs[i])

    @property
    def is_known(self) -> bool:
        """Whether any step was measured."""
        return self._unit_s > 0

    def seconds(self, n_rows: int) -> float:
        """The time that a step of so many rows takes now; 0 where none was measured."""
        return self.of(n_rows) * self._unit_s

    def note(self, n_rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        seconds = max(seconds, MIN_S)
        expected = self.of(n_rows)
        if not self._unit_s:
            self._unit_s = seconds / expected
        ratio = min(MAX_RATIO, max(1 / MAX_RATIO, seconds / (expected * self._unit_s)))
        self._unit_s *= ratio**SPEED_RATE
        i, share = _place(n_rows)
        self._costs[i] *= ratio ** (COST_RATE * (1 - min(share, 1.0)))
        self._costs[i + 1] *= ratio ** (COST_RATE * min(share, 1.0))


def _place(n_rows: int) -> tuple[int, float]:
    """The entry at or before so many rows, and how far they are on the way to the next one; beyond the last as well."""
    i = min(bisect_right(ROWS, n_rows), len(ROWS) - 1) - 1
    return i, (n_rows - ROWS[i]) / (ROWS[i + 1] - ROWS[i])

"""Durations counted in buckets, as Prometheus's histograms are; it knows nothing of what took so long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds, inclusive: from a token of a small model to a long prompt on a slow processor."""


class Distribution:
    """`counts` has one number for each of BOUNDS_S, and one for what took longer; they do not include each other."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s

    def add(self, counts: Sequence[int], total_s: float) -> None:
        """Count what another one counted. Raises: ValueError where it has other buckets."""
        if len(counts) != len(self.counts):
            raise ValueError(f"expected {len(self.counts)} buckets, got {len(counts)}")
        self.counts = [mine + its for mine, its in zip(self.counts, counts, strict=True)]
        self.total_s += total_s

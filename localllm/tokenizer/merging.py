"""Merges neighbouring symbols by rank; where ranks come from, and what a symbol stands for, it does not know."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

NO_RANK = 1 << 32
LONG_WORD = 48  # symbols; beyond it a heap is faster than looking for the least rank again and again
MAX_PAIRS = 1 << 16
MAX_WORDS = 1 << 15

K = TypeVar("K")
V = TypeVar("V")
Symbol = TypeVar("Symbol")
Pair = TypeVar("Pair")


class Remembered(dict[K, V]):
    """What `compute` gives for a key, remembered for the last keys: at `limit` of them it begins anew.

    Several threads may look things up.
    """

    def __init__(self, compute: Callable[[K], V], limit: int) -> None:
        self._compute = compute
        self._limit = limit

    def __missing__(self, key: K) -> V:
        value = self._compute(key)
        if len(self) >= self._limit:
            self.clear()
        self[key] = value
        return value


class PairMerger(Generic[Symbol, Pair]):
    """Merges the pair of least rank first, of equal ones the leftmost, until no pair merges.

    `pair(left, right)` is the key of two symbols in `ranks`, which has NO_RANK for those that do not merge;
    `merged(pair, rank)` is the symbol that the others become.
    """

    def __init__(
        self,
        pair: Callable[[Symbol, Symbol], Pair],
        ranks: Mapping[Pair, int],
        merged: Callable[[Pair, int], Symbol],
    ) -> None:
        self._pair, self._ranks, self._merged = pair, ranks, merged

    def merge(self, symbols: list[Symbol]) -> list[Symbol]:
        """What the symbols become; the list may be changed."""
        if len(symbols) > LONG_WORD:
            return self._merge_long(symbols)
        pair, ranks_of = self._pair, self._ranks
        ranks = [ranks_of[pair(left, right)] for left, right in itertools.pairwise(symbols)]
        while ranks:
            rank = min(ranks)
            if rank == NO_RANK:
                break
            i = ranks.index(rank)
            symbols[i : i + 2] = [self._merged(pair(symbols[i], symbols[i + 1]), rank)]
            del ranks[i]
            if i:
                ranks[i - 1] = ranks_of[pair(symbols[i - 1], symbols[i])]
            if i < len(ranks):
                ranks[i] = ranks_of[pair(symbols[i], symbols[i + 1])]
        return symbols

    def _merge_long(self, symbols: list[Symbol]) -> list[Symbol]:
        """In n log n: a heap of rank * n + position, entries that no longer hold are skipped."""
        pair, ranks_of = self._pair, self._ranks
        n = len(symbols)
        following, previous = list(range(1, n + 1)), list(range(-1, n - 1))
        ranks = [ranks_of[pair(left, right)] for left, right in itertools.pairwise(symbols)]
        heap = [rank * n + i for i, rank in enumerate(ranks) if rank != NO_RANK]
        heapq.heapify(heap)
        while heap:
            rank, i = divmod(heapq.heappop(heap), n)
            right = following[i]
            if not 0 <= right < n or ranks[i] != rank:
                continue
            symbols[i] = self._merged(pair(symbols[i], symbols[right]), rank)
            following[i] = after = following[right]
            following[right] = -1
            if after < n:
                previous[after] = i
            for left, beside in ((previous[i], i), (i, after)):
                if left >= 0 and beside < n:
                    ranks[left] = found = ranks_of[pair(symbols[left], symbols[beside])]
                    if found != NO_RANK:
                        heapq.heappush(heap, found * n + left)
        return [symbol for symbol, right in zip(symbols, following, strict=True) if right >= 0]

"""One sequence of tokens and the pages that hold its keys and values; it does not know how they are computed."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels_cpu.graph import PAGE_POSITIONS
from localllm.engine.pages import PageAllocator

Logits = Literal["last", "all", "none"]


class Sequence:
    """Tokens whose keys and values are in the KV cache. `Engine.open_sequence` makes it, `Engine.step` extends it.

    `slot` is its row in the engine's page tables; `table` is that row, int32 [max_pages], -1 where no page is held.
    """

    def __init__(self, slot: int, table: npt.NDArray[np.int32], pages: PageAllocator, free_slots: list[int]) -> None:
        self.slot = slot
        self._table = table
        self._pages = pages
        self._free_slots = free_slots
        self._tokens: list[int] = []
        self._n_held = 0
        self._is_open = True

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids so far, at positions 0, 1, 2, …"""
        return tuple(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def is_open(self) -> bool:
        return self._is_open

    def truncate(self, n: int) -> None:
        """Forgets all tokens but the first `n` and gives back the pages they do not need.

        Raises:
            ValueError: the sequence is closed or has fewer tokens.
        """
        self.check_open()
        if not 0 <= n <= len(self._tokens):
            raise ValueError(f"truncate: expected 0..{len(self._tokens)} tokens, got {n}")
        del self._tokens[n:]
        self.give_back()

    def close(self) -> None:
        """Gives back all pages and the slot. Closing twice is allowed."""
        if not self._is_open:
            return
        self._tokens.clear()
        self.give_back()
        self._is_open = False
        self._free_slots.append(self.slot)

    def check_open(self) -> None:
        """Raises ValueError if the sequence is closed."""
        if not self._is_open:
            raise ValueError("the sequence is closed")

    def n_pages_missing(self, n_new: int) -> int:
        """Pages to be taken before `n_new` tokens fit."""
        return max(0, n_pages_for(len(self._tokens) + n_new) - self._n_held)

    def hold(self, n_new: int) -> None:
        """Takes the pages that `n_new` more tokens need. Raises KVCacheFullError if there are not enough."""
        for page in self._pages.take(self.n_pages_missing(n_new)):
            self._table[self._n_held] = page
            self._n_held += 1

    def give_back(self) -> None:
        """Gives back the pages that the tokens do not need."""
        n_kept = n_pages_for(len(self._tokens))
        for index in range(n_kept, self._n_held):
            self._pages.release(int(self._table[index]))
        self._table[n_kept : self._n_held] = -1
        self._n_held = n_kept

    def extend(self, tokens: list[int]) -> None:
        """Notes tokens whose keys and values have been written."""
        self._tokens.extend(tokens)


@dataclass(frozen=True)
class Entry:
    """A sequence's part in a step: ids to be appended, which of their logits are wanted, and the adapters in force.

    The latter are places that `Engine.load_adapter` gave, at most MAX_PER_ROW, each with a scale.
    """

    seq: Sequence
    tokens: Sequence_[int]
    logits: Logits = "last"
    adapters: tuple[tuple[int, float], ...] = ()


def n_pages_for(n_tokens: int) -> int:
    """Pages that hold `n_tokens` positions."""
    return -(-n_tokens // PAGE_POSITIONS)

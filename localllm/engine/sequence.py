"""One sequence of tokens and the pages that hold its keys and values; it does not know how they are computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels_cpu.graph import PAGE_POSITIONS, Value
from localllm.engine.pages import PageAllocator
from localllm.engine.prefix_tree import Node, PrefixTree

Logits = Literal["last", "all", "none"] | int
"""Of which tokens of an entry logits are wanted; a number: of so many last ones."""


@dataclass(frozen=True)
class Pool:
    """What the sequences of an engine share. `copy_page(of, to)` copies keys and values. `tree`: pages by their tokens,
    None where keys and values are of no use to others."""

    pages: PageAllocator
    copy_page: Callable[[int, int], None]
    tree: PrefixTree | None


@dataclass(frozen=True)
class Chunk:
    """Tokens that have gone through the first `n_stages` stages of the model, and what they are by then."""

    tokens: list[int]
    n_stages: int
    values: dict[Value, npt.NDArray[np.uint8]]


class Sequence:
    """Tokens whose keys and values are in the KV cache. `Engine.open_sequence` makes it, `Engine.step` extends it.

    `slot` is its row in the engine's page tables; `table` is that row, int32 [max_pages], -1 where no page is held.
    Full pages are in the tree as soon as they are full. A page that others use too is copied before it is written to.
    The last tokens may be a draft: others never see them unless `truncate` has kept them. `chunk` are tokens to follow
    that are on their way through the model; they are lost where the sequence changes otherwise.
    """

    def __init__(
        self, slot: int, table: npt.NDArray[np.int32], pool: Pool, free_slots: list[int], key: Hashable = ()
    ) -> None:
        self.slot = slot
        self._table = table
        self._pool = pool
        self._pages = pool.pages
        self._free_slots = free_slots
        self._key = key
        self._tokens: list[int] = []
        self._nodes: list[Node] = []  # of the full pages
        self._n_held = 0
        self._n_draft = 0
        self._is_open = True
        self.chunk: Chunk | None = None

    def begin_like(self, tokens: Sequence_[int]) -> None:
        """Take over the longest start of `tokens` that the tree knows; the sequence is empty."""
        if self._pool.tree is None or not tokens:
            return
        nodes, n = self._pool.tree.find(tokens, self._key)
        for i, node in enumerate(nodes):
            self._pages.share(node.page)
            self._table[i] = node.page
        self._n_held = len(nodes)
        self._tokens.extend(tokens[:n])
        self._nodes.extend(nodes[: n // PAGE_POSITIONS])

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids so far, at positions 0, 1, 2, …"""
        return tuple(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def n_draft(self) -> int:
        """How many of the last tokens are a draft."""
        return self._n_draft

    @property
    def n_chunk(self) -> int:
        """How many tokens are on their way through the model."""
        return len(self.chunk.tokens) if self.chunk else 0

    @property
    def n_stages_done(self) -> int:
        """How many stages of it they have gone through."""
        return self.chunk.n_stages if self.chunk else 0

    @property
    def is_open(self) -> bool:
        return self._is_open

    def truncate(self, n: int) -> None:
        """Forgets all tokens but the first `n`, which are no draft from now on, and gives back the pages they do not
        need.

        Raises:
            ValueError: the sequence is closed or has fewer tokens.
        """
        self.check_open()
        if not 0 <= n <= len(self._tokens):
            raise ValueError(f"truncate: expected 0..{len(self._tokens)} tokens, got {n}")
        del self._tokens[n:]
        del self._nodes[n // PAGE_POSITIONS :]
        self._n_draft = 0
        self.give_back()
        self._note_full_pages()

    def close(self) -> None:
        """Gives back all pages and the slot; what the tokens need stays in the tree. Closing twice is allowed."""
        if not self._is_open:
            return
        self.truncate(len(self._tokens) - self._n_draft)
        rest = tuple(self._tokens[len(self._nodes) * PAGE_POSITIONS :])
        if rest and self._pool.tree is not None:
            self._pool.tree.add(self._last_node(self._pool.tree), rest, int(self._table[len(self._nodes)]))
        self._tokens.clear()
        self._nodes.clear()
        self.give_back()
        self._is_open = False
        self._free_slots.append(self.slot)

    def check_open(self) -> None:
        """Raises ValueError if the sequence is closed."""
        if not self._is_open:
            raise ValueError("the sequence is closed")

    def n_pages_missing(self, n_new: int) -> int:
        """Pages to be taken before `n_new` tokens fit."""
        return max(0, n_pages_for(len(self._tokens) + n_new) - self._n_held) + self._is_tail_shared()

    def hold(self, n_new: int) -> None:
        """Takes the pages that `n_new` more tokens need. Raises KVCacheFullError if there are not enough."""
        taken = self._pages.take(self.n_pages_missing(n_new))
        if self._is_tail_shared():
            own, tail = taken.pop(), len(self._tokens) // PAGE_POSITIONS
            self._pool.copy_page(int(self._table[tail]), own)
            self._pages.release(int(self._table[tail]))
            self._table[tail] = own
        for page in taken:
            self._table[self._n_held] = page
            self._n_held += 1

    def own_tail(self) -> None:
        """Have the page that the next token goes to out of the tree, if that alone uses it too: there is no room for a
        copy."""
        if self._pool.tree is not None and self._is_tail_shared():
            self._pool.tree.let_go(int(self._table[len(self._tokens) // PAGE_POSITIONS]))

    def hold_page(self) -> int:
        """Takes the page for the next PAGE_POSITIONS tokens, which the caller writes and then notes with `extend`. The
        sequence's last page is full. Raises KVCacheFullError if there is none."""
        self.hold(PAGE_POSITIONS)
        return int(self._table[len(self._nodes)])

    @property
    def last_node(self) -> Node:
        """That of the last full page, of which there is one."""
        return self._nodes[-1]

    def give_back(self) -> None:
        """Gives back the pages that the tokens do not need; a chunk's are among them."""
        self.chunk = None
        n_kept = n_pages_for(len(self._tokens))
        for index in range(n_kept, self._n_held):
            self._pages.release(int(self._table[index]))
        self._table[n_kept : self._n_held] = -1
        self._n_held = n_kept

    def extend(self, tokens: list[int], n_draft: int = 0) -> None:
        """Notes tokens whose keys and values have been written; the last `n_draft` of all are a draft."""
        self.chunk = None
        self._tokens.extend(tokens)
        self._n_draft = n_draft
        self._note_full_pages()

    def _note_full_pages(self) -> None:
        if self._pool.tree is not None:
            while (len(self._nodes) + 1) * PAGE_POSITIONS <= len(self._tokens) - self._n_draft:
                self._note_page(self._pool.tree)

    def _note_page(self, tree: PrefixTree) -> None:
        """Put the next full page into the tree; where that has the same tokens already, its page takes the place."""
        i = len(self._nodes)
        own = int(self._table[i])
        tokens = tuple(self._tokens[i * PAGE_POSITIONS : (i + 1) * PAGE_POSITIONS])
        node = tree.add(self._last_node(tree), tokens, own)
        assert node is not None, "nothing is longer than a full page"
        if node.page != own:
            self._pages.share(node.page)
            self._pages.release(own)
            self._table[i] = node.page
        self._nodes.append(node)

    def _last_node(self, tree: PrefixTree) -> Node:
        return self._nodes[-1] if self._nodes else tree.root(self._key)

    def _is_tail_shared(self) -> bool:
        """Whether the page that the next token goes to is used by others too."""
        tail, n = divmod(len(self._tokens), PAGE_POSITIONS)
        return n > 0 and self._pages.n_users(int(self._table[tail])) > 1


@dataclass(frozen=True)
class Entry:
    """A sequence's part in a step: ids to be appended, which of their logits are wanted, and the adapters in force.

    The latter are places that `Engine.load_adapter` gave, at most MAX_PER_ROW, each with a scale. After it the last
    `n_draft` tokens of the sequence are a draft: it must be truncated to what is accepted before others may see them.

    With `n_stages` the tokens go through so many further stages of the model only, and are the sequence's chunk until
    they are through; until then there are no logits of them, and they must be named again, with or without `n_stages`.
    """

    seq: Sequence
    tokens: Sequence_[int]
    logits: Logits = "last"
    adapters: tuple[tuple[int, float], ...] = ()
    n_draft: int = 0
    n_stages: int | None = None


def n_pages_for(n_tokens: int) -> int:
    """Pages that hold `n_tokens` positions."""
    return -(-n_tokens // PAGE_POSITIONS)

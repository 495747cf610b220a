"""Pages of the KV cache by the tokens that they hold, for whoever begins alike; it does not know what is in a page.

A node is a page, full or not; the way to it from its root are the tokens of the pages before it, on which its keys and
values depend. Pages are shared by reference: the tree is one user of each of its pages, sequences are others. The idea
is that of SGLang's RadixAttention (Zheng et al., 2023).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Hashable
from collections.abc import Sequence as Tokens
from typing import Protocol

from kernels_cpu.graph import PAGE_POSITIONS
from localllm.engine.pages import PageAllocator


class Node:
    """`tokens` are those of the page, at most PAGE_POSITIONS; only a full one has children, by their tokens, which
    `order` has in order: neighbours there are those that begin alike for the longest. No child's begin another's.

    A root has no page (-1) and no parent; a node that left the tree has no page either. `key` is that of its root,
    `depth` how many pages end with it. `chain` and `is_kept` are for the tree's listener.
    """

    __slots__ = (
        *("chain", "children", "depth", "is_kept", "is_queued", "key", "last_used", "order", "page", "parent"),
        "tokens",
    )

    def __init__(self, tokens: tuple[int, ...], page: int, parent: Node | None, key: Hashable) -> None:
        self.tokens = tokens
        self.page = page
        self.parent = parent
        self.key = key
        self.depth: int = parent.depth + 1 if parent else 0
        self.chain = b""
        self.is_kept = False
        self.children: dict[tuple[int, ...], Node] = {}
        self.order: list[tuple[int, ...]] = []
        self.last_used = 0
        self.is_queued = False


class Listener(Protocol):
    """Is told of pages that came into the tree, and of those that are about to leave it."""

    def added(self, node: Node) -> None: ...

    def removed(self, node: Node) -> None: ...


class PrefixTree:
    """Keeps pages until they are needed elsewhere: those used longest ago go first, none that a sequence holds.

    Keys and values also depend on the adapters in force: there is a root for each *key* that has pages. What could be
    given up is known at any time, so that nothing ever looks at the whole tree.
    """

    def __init__(self, pages: PageAllocator, listener: Listener | None = None) -> None:
        self._pages = pages
        self._listener = listener
        pages.on_idle = self._became_idle
        self._roots: dict[Hashable, Node] = {}
        self._nodes: dict[int, Node] = {}  # by page
        # Leaves that nobody uses, and some that were; each once, and not younger than it was when it was put here.
        self._queue: list[tuple[int, int, Node]] = []
        self._now = 0
        self.n_evicted = 0

    def root(self, key: Hashable) -> Node:
        """Where sequences under a key begin. It stays the tree's only while it has children: ask anew."""
        found = self._roots.get(key)
        if found is None:
            found = self._roots[key] = Node((), -1, None, key)
        return found

    def n_full_pages(self, tokens: Tokens[int], key: Hashable) -> int:
        """How many full pages of `tokens` are known at this moment; any thread may ask."""
        node, n = self._roots.get(key), 0
        while node is not None and (n + 1) * PAGE_POSITIONS <= len(tokens):
            node = node.children.get(tuple(tokens[n * PAGE_POSITIONS : (n + 1) * PAGE_POSITIONS]))
            n += node is not None
        return n

    def find(self, tokens: Tokens[int], key: Hashable) -> tuple[list[Node], int]:
        """The pages that hold the longest known start of `tokens`, and how many tokens that is. Of the last page it may
        be a part."""
        node = self._roots.get(key)
        if node is None:
            return [], 0
        found: list[Node] = []
        n = 0
        while (child := node.children.get(tuple(tokens[n : n + PAGE_POSITIONS]))) is not None:
            if len(child.tokens) < PAGE_POSITIONS:
                break
            found.append(child)
            node, n = child, n + PAGE_POSITIONS
        rest = tuple(tokens[n : n + PAGE_POSITIONS])
        at = bisect_left(node.order, rest)
        near = [(common_length(like, rest), like) for like in node.order[max(0, at - 1) : at + 1]]
        n_best, best = max(near, default=(0, ()))
        if n_best:
            found.append(node.children[best])
        if found:
            self._use(found[-1])
        return found, n + n_best

    def add(self, parent: Node, tokens: tuple[int, ...], page: int) -> Node | None:
        """Keep a page, which the caller holds, behind `parent`. Gives the node of these tokens, which may have another
        page already; None where longer ones are known that begin with them.
        """
        known = parent.children.get(tokens)
        if known is None:
            at = bisect_left(parent.order, tokens)
            if at < len(parent.order) and parent.order[at][: len(tokens)] == tokens:
                return None
            before = parent.order[at - 1] if at else tokens
            begun = parent.children[before] if at and tokens[: len(before)] == before else None
            known = parent.children[tokens] = self._nodes[page] = Node(tokens, page, parent, parent.key)
            parent.order.insert(at, tokens)
            self._pages.keep(page)
            if self._listener:
                self._listener.added(known)
            if begun:
                self._remove(begun)
        self._use(known)
        return known

    def evict(self, n: int) -> int:
        """Give pages up until `n` became free, those that were used longest ago first; how many did."""
        n_freed = 0
        while self._queue and n_freed < n:
            queued, _, node = heapq.heappop(self._queue)
            node.is_queued = False
            if not self._is_idle_leaf(node):
                continue
            if node.last_used > queued:
                self._enqueue(node)
                continue
            self._remove(node)
            n_freed += 1
        self.n_evicted += n_freed
        return n_freed

    def let_go(self, page: int) -> None:
        """Take a page out of the tree, if one sequence alone uses it and nothing is known that goes on behind it."""
        node = self._nodes.get(page)
        if node is not None and not node.children and self._pages.n_users(page) == 2:
            self._remove(node)
            self.n_evicted += 1

    @property
    def n_idle(self) -> int:
        """Pages that nobody but the tree uses."""
        return self._pages.n_idle

    @property
    def n_roots(self) -> int:
        """Keys under which something is known."""
        return len(self._roots)

    def _use(self, node: Node) -> None:
        """Note that a page is used now, and so are those before it, which take this over when they become leaves."""
        self._now += 1
        node.last_used = self._now

    def _remove(self, leaf: Node) -> None:
        above = leaf.parent
        assert above is not None and not leaf.children
        if self._listener:
            self._listener.removed(leaf)
        page, leaf.page = leaf.page, -1
        del above.children[leaf.tokens], self._nodes[page]
        del above.order[bisect_left(above.order, leaf.tokens)]
        self._pages.give_up(page)
        above.last_used = max(above.last_used, leaf.last_used)
        if above.parent is None and not above.children:
            self._roots.pop(above.key, None)
        self._enqueue(above)

    def _became_idle(self, page: int) -> None:
        self._enqueue(self._nodes[page])

    def _enqueue(self, node: Node) -> None:
        """Put a node where `evict` looks, if it could be given up."""
        if node.is_queued or not self._is_idle_leaf(node):
            return
        node.is_queued = True
        heapq.heappush(self._queue, (node.last_used, node.page, node))
        if len(self._queue) > 2 * self._pages.n_pages:  # of nodes that left the tree otherwise
            self._queue = [item for item in self._queue if item[2].page >= 0]
            heapq.heapify(self._queue)

    def _is_idle_leaf(self, node: Node) -> bool:
        return node.page >= 0 and not node.children and self._pages.is_idle(node.page)


def common_length(a: Tokens[int], b: Tokens[int]) -> int:
    """Length of the longest common start."""
    n = 0
    for x, y in zip(a, b):  # noqa: B905 (the shorter one ends it)
        if x != y:
            break
        n += 1
    return n

"""Pages of the KV cache by the tokens that they hold, for whoever begins alike; it does not know what is in a page.

A node is a page, full or not; the way to it from its root are the tokens of the pages before it, on which its keys and
values depend. Pages are shared by reference: the tree is one user of each of its pages, sequences are others. The idea
is that of SGLang's RadixAttention (Zheng et al., 2023).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Tokens

from kernels_cpu.graph import PAGE_POSITIONS
from localllm.engine.pages import PageAllocator


class Node:
    """`tokens` are those of the page, at most PAGE_POSITIONS; only a full one has children, by their tokens.

    A root has no page and no parent.
    """

    __slots__ = ("children", "last_used", "page", "parent", "tokens")

    def __init__(self, tokens: tuple[int, ...], page: int, parent: Node | None) -> None:
        self.tokens = tokens
        self.page = page
        self.parent = parent
        self.children: dict[tuple[int, ...], Node] = {}
        self.last_used = 0


class PrefixTree:
    """Keeps pages until they are needed elsewhere: those used longest ago go first, none that a sequence holds.

    Keys and values also depend on the adapters in force: there is a root for each *key*.
    """

    def __init__(self, pages: PageAllocator) -> None:
        self._pages = pages
        self._roots: dict[Hashable, Node] = {}
        self._now = 0
        self.n_evicted = 0

    def root(self, key: Hashable) -> Node:
        """Where sequences under a key begin."""
        found = self._roots.get(key)
        if found is None:
            found = self._roots[key] = Node((), -1, None)
        return found

    def find(self, tokens: Tokens[int], key: Hashable) -> tuple[list[Node], int]:
        """The pages that hold the longest known start of `tokens`, and how many tokens that is. Of the last page it may
        be a part."""
        found: list[Node] = []
        node, n = self.root(key), 0
        while (child := node.children.get(tuple(tokens[n : n + PAGE_POSITIONS]))) is not None:
            if len(child.tokens) < PAGE_POSITIONS:
                break
            found.append(child)
            node, n = child, n + PAGE_POSITIONS
        rest = tuple(tokens[n : n + PAGE_POSITIONS])
        best, n_best = None, 0
        for child in node.children.values():
            if rest and child.tokens[0] == rest[0] and (length := common_length(child.tokens, rest)) > n_best:
                best, n_best = child, length
        if best is not None:
            found.append(best)
        self._use(found)
        return found, n + n_best

    def add(self, parent: Node, tokens: tuple[int, ...], page: int) -> Node | None:
        """Keep a page behind `parent`, of which the tree becomes a user. Gives the node of these tokens, which may have
        another page already; None where longer ones are known that begin with them.
        """
        known = parent.children.get(tokens)
        if known is None:
            for child in list(parent.children.values()):
                n = common_length(child.tokens, tokens)
                if n == len(tokens):
                    return None
                if n == len(child.tokens):  # the beginning of what is known now
                    self._remove(child)
            known = parent.children[tokens] = Node(tokens, page, parent)
            self._pages.share(page)
        self._use([known])
        return known

    def evict(self, n: int) -> int:
        """Give pages up until `n` became free, those that were used longest ago first; how many did."""
        if n <= 0:
            return 0
        n_freed = 0
        waiting = [(node.last_used, node.page, node) for node in self._nodes() if self._is_idle_leaf(node)]
        heapq.heapify(waiting)
        while waiting and n_freed < n:
            _, _, leaf = heapq.heappop(waiting)
            above = leaf.parent
            self._remove(leaf)
            n_freed += 1
            if above is not None and self._is_idle_leaf(above):
                heapq.heappush(waiting, (above.last_used, above.page, above))
        self.n_evicted += n_freed
        return n_freed

    @property
    def n_idle(self) -> int:
        """Pages that nobody but the tree uses."""
        return sum(node.page >= 0 and self._pages.n_users(node.page) == 1 for node in self._nodes())

    def _use(self, nodes: list[Node]) -> None:
        """Note that these are used now; what a leaf hangs from is never older than it."""
        self._now += 1
        for node in nodes:
            above: Node | None = node
            while above is not None and above.last_used != self._now:
                above.last_used = self._now
                above = above.parent

    def _remove(self, leaf: Node) -> None:
        assert leaf.parent is not None and not leaf.children
        del leaf.parent.children[leaf.tokens]
        self._pages.release(leaf.page)

    def _is_idle_leaf(self, node: Node) -> bool:
        return node.page >= 0 and not node.children and self._pages.n_users(node.page) == 1

    def _nodes(self) -> Iterator[Node]:
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()


def common_length(a: Tokens[int], b: Tokens[int]) -> int:
    """Length of the longest common start."""
    n = 0
    for x, y in zip(a, b):  # noqa: B905 (the shorter one ends it)
        if x != y:
            break
        n += 1
    return n

"""Which pages of the prefix tree could be given up, and which go first: as if all of it were looked at each time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import DataObject, data, integers, lists, sampled_from

from localllm.engine.pages import PageAllocator
from localllm.engine.prefix_tree import Node, PrefixTree

PAGE = 32
N_PAGES = 24


class Tree(RuleBasedStateMachine):
    """Sequences of few different pages begin, go on and end. `used` says when each node was used last."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(N_PAGES)
        self.tree = PrefixTree(self.pages)
        self.held: list[list[Node]] = []
        self.page_of: dict[Node, int] = {}  # those of nodes that left the tree too
        self.used: dict[Node, int] = {}
        self.now = 0

    def _use(self, nodes: list[Node]) -> None:
        self.now += 1
        self.used.update(dict.fromkeys(nodes, self.now))
        self.page_of.update((node, node.page) for node in nodes if node.page >= 0)

    @rule(words=lists(integers(0, 1), max_size=4), key=sampled_from("ab"))
    def begin(self, words: list[int], key: str) -> None:
        nodes, _ = self.tree.find([word for word in words for _ in range(PAGE)], key)
        for node in nodes:
            self.pages.share(node.page)
        self._use(nodes)
        self.held.append(nodes)

    @precondition(lambda self: self.held)
    @rule(draw=data(), word=integers(0, 1), n=sampled_from([5, PAGE]), key=sampled_from("ab"))
    def go_on(self, draw: DataObject, word: int, n: int, key: str) -> None:
        nodes = draw.draw(sampled_from(self.held))
        if self.pages.n_free == 0 or (nodes and len(nodes[-1].tokens) < PAGE):
            return
        (page,) = self.pages.take(1)
        node = self.tree.add(nodes[-1] if nodes else self.tree.root(key), (word,) * n, page)
        if node is not None:
            self.pages.share(node.page)
            nodes.append(node)
            self._use(nodes)
        self.pages.release(page)

    @precondition(lambda self: self.held)
    @rule(draw=data())
    def end(self, draw: DataObject) -> None:
        nodes = self.held.pop(draw.draw(integers(0, len(self.held) - 1)))
        for node in nodes:
            self.pages.release(self.page_of[node])

    @rule(n=integers(0, 5))
    def evict(self, n: int) -> None:
        before = self._nodes()
        expected: list[Node] = []
        while len(expected) < n:
            left = [node for node in before if node not in expected]
            leaves = [node for node in left if self._is_idle(node) and not any(child.parent is node for child in left)]
            if not leaves:
                break
            expected.append(min(leaves, key=lambda node: self.used[node]))
        assert self.tree.evict(n) == len(expected)
        assert [node for node in before if node.page < 0] == [node for node in before if node in expected]

    @invariant()
    def counts_agree(self) -> None:
        nodes = self._nodes()
        assert self.tree.n_idle == sum(map(self._is_idle, nodes))
        assert self.tree.n_roots == len({node.key for node in nodes})
        used = {self.page_of[node] for node in (*nodes, *(node for held in self.held for node in held))}
        assert self.pages.n_free == N_PAGES - len(used)

    def _is_idle(self, node: Node) -> bool:
        return not any(node in nodes for nodes in self.held)

    def _nodes(self) -> list[Node]:
        return [node for node in self.used if node.page >= 0]


Tree.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTree = Tree.TestCase


def test_what_replaces_others_leaves_nothing_behind() -> None:
    pages = PageAllocator(4)
    tree = PrefixTree(pages)
    for turn in range(200):
        for n in range(1, PAGE):
            (page,) = pages.take(1)
            assert tree.add(tree.root(turn), (1,) * n, page) is not None
            pages.release(page)
        assert tree.evict(1) == 1
        assert len(tree._queue) <= 2 * pages.n_pages
    assert (tree.n_roots, tree.n_idle, pages.n_free, tree.evict(1)) == (0, 0, 4, 0)

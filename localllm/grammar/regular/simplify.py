"""Trees of patterns without what makes no difference to the strings that hold a match."""

from __future__ import annotations

from localllm.grammar.regular.syntax import EMPTY, Alt, Cat, Node, Rep, Set


def within_text(node: Node) -> Node:
    """A tree that is found in the same strings: at its beginning and its end nothing is repeated needlessly.

    Any text may come before a match, so that more repetitions than the fewest add nothing to it; so it is after one.
    """
    return _trimmed(_trimmed(node, at_front=True), at_front=False)


def _trimmed(node: Node, *, at_front: bool) -> Node:
    if isinstance(node, Rep) and not _looks_around(node.item):
        if node.least == 0:
            return EMPTY
        outer = _trimmed(node.item, at_front=at_front)
        others = Rep(node.item, node.least - 1, node.least - 1)
        if node.least == 1 or outer == EMPTY:
            return outer
        return Cat((outer, others) if at_front else (others, outer))
    if isinstance(node, Alt):
        branches = [_trimmed(item, at_front=at_front) for item in node.items]
        return EMPTY if EMPTY in branches and not _looks_around(node) else Alt(tuple(branches))
    if isinstance(node, Cat):
        items = list(node.items) if at_front else list(node.items[::-1])
        for i, item in enumerate(items):
            outer = _trimmed(item, at_front=at_front)
            if outer != EMPTY:
                kept = [outer, *items[i + 1 :]]
                return Cat(tuple(kept if at_front else kept[::-1]))
        return EMPTY
    return node


def _looks_around(node: Node) -> bool:
    if isinstance(node, (Cat, Alt)):
        return any(map(_looks_around, node.items))
    if isinstance(node, Rep):
        return _looks_around(node.item)
    return not isinstance(node, Set)


def repeated(item: Node, least: int, most: int | None) -> Node:
    """`Rep`, where repetitions of what may be left out, or repeated itself, become one."""
    if isinstance(item, Rep) and item.least == 0 and item.most in (1, None):
        return Rep(item.item, 0, most if item.most == 1 else None if most != 0 else 0)
    return Rep(item, least, most)

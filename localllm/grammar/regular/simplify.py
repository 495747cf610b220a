"""Trees of patterns without what makes no difference to the strings that hold a match."""

from __future__ import annotations

from localllm.grammar.regular.charsets import EVERYTHING
from localllm.grammar.regular.syntax import EMPTY, Alt, Anchor, Cat, Look, Node, Rep, Set

_ANY = Rep(Set(EVERYTHING), 0, None)


def searched(node: Node) -> Node:
    """A tree that matches, as a whole, the strings in which one finds a match.

    Any text may come before a match, and after it, so that more repetitions than the fewest add nothing there.
    """
    node = _trimmed(_trimmed(node, at_front=True), at_front=False)
    before = () if _is_anchored(node, at_front=True) else (_ANY,)
    after = () if _is_anchored(node, at_front=False) else (_ANY,)
    return Cat((*before, node, *after))


def _is_anchored(node: Node, *, at_front: bool) -> bool:
    """Whether a match can begin at the start of a text alone, or end at its end alone."""
    if isinstance(node, Alt):
        return all(_is_anchored(item, at_front=at_front) for item in node.items)
    if isinstance(node, Rep):
        return node.least > 0 and _is_anchored(node.item, at_front=at_front)
    if isinstance(node, Cat):
        for item in node.items if at_front else node.items[::-1]:
            if not isinstance(item, (Anchor, Look)) or _is_anchored(item, at_front=at_front):
                return _is_anchored(item, at_front=at_front)
        return False
    return isinstance(node, Anchor) and node.kind == ("start" if at_front else "end")


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

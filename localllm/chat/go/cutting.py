"""Go templates up to the place of the answer; it knows nothing of values."""

from __future__ import annotations

from dataclasses import replace

from localllm.chat.go import nodes
from localllm.chat.go.nodes import Node


def cut_after(body: list[Node], field: str) -> list[Node]:
    """The nodes without all that comes after the first action that prints a field, wherever that lies."""
    return _cut(body, field)[0]


def _cut(body: list[Node], field: str) -> tuple[list[Node], bool]:
    """The nodes that stay, and whether the place was among them."""
    kept: list[Node] = []
    for node in body:
        if isinstance(node, nodes.Action) and _mentions(node, field):
            return [*kept, node], True
        if isinstance(node, nodes.Branch) and _mentions_below(node, field):
            return [*kept, _cut_branch(node, field)], True
        kept.append(node)
    return kept, False


def _cut_branch(node: nodes.Branch, field: str) -> nodes.Branch:
    inner, is_cut = _cut(node.body, field)
    otherwise = None if node.otherwise is None else [] if is_cut else _cut(node.otherwise, field)[0]
    return replace(node, body=inner, otherwise=otherwise)


def _mentions(node: Node, field: str) -> bool:
    return any(field in nodes.names_of(inner) for inner in nodes.walk([node]))


def _mentions_below(node: nodes.Branch, field: str) -> bool:
    actions = nodes.walk([*node.body, *(node.otherwise or [])])
    return any(isinstance(inner, nodes.Action) and _mentions(inner, field) for inner in actions)

"""What a Go template's text tells of a model's answers: the tags of thinking and of tool calls.

It knows nothing of how answers are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator

from localllm.chat.go import nodes
from localllm.chat.go.nodes import Node
from localllm.chat.go.parser import Trees

# Where tool calls have no tag of their own, any JSON object may be one.
OBJECT = "{"


def thinking_tags(trees: Trees) -> tuple[str, str] | None:
    """The lines of text just before and after `.Thinking` where the messages are ranged over; None without both."""
    for branch in _branches(trees):
        if branch.keyword == "range" and _reads(branch.pipe, "Messages"):
            for before, after in _around_thinking(branch.body, "", ""):
                if before.strip() and after.strip():
                    return before.strip().splitlines()[-1].strip(), after.strip().splitlines()[0].strip()
    return None


def _around_thinking(body: list[Node], before: str, after: str) -> Iterator[tuple[str, str]]:
    """The texts around each print of `.Thinking`; where one is missing, that around what encloses it."""
    for i, node in enumerate(body):
        near_before = _text(body[i - 1 : i] if i else []) or before
        near_after = _text(body[i + 1 : i + 2]) or after
        if isinstance(node, nodes.Action) and _reads(node.pipe, "Thinking"):
            yield near_before, near_after
        elif isinstance(node, nodes.Branch):
            for inner in (node.body, node.otherwise or []):
                yield from _around_thinking(inner, near_before, near_after)


def _text(neighbours: list[Node]) -> str:
    return "".join(node.text for node in neighbours if isinstance(node, nodes.Text) and node.text.strip())


def tool_tag(trees: Trees) -> str | None:
    """The first text inside `if .ToolCalls`, up to a `{`; `{` where that leaves nothing, None without such an `if`."""
    for branch in _branches(trees):
        if branch.keyword == "if" and _reads(branch.pipe, "ToolCalls"):
            text = _first_text(branch.body) or ""
            return text.replace("\r\n", "\n").partition(OBJECT)[0].strip() or OBJECT
    return None


def _first_text(body: list[Node]) -> str | None:
    """The first text that is not blank, unless something else is printed before it."""
    for node in body:
        if isinstance(node, nodes.Text) and node.text.strip():
            return node.text
        if isinstance(node, nodes.Action) and not node.pipe.variables:
            return None
        if isinstance(node, nodes.Branch):
            return _first_text(node.body) or _first_text(node.otherwise or [])
    return None


def _branches(trees: Trees) -> Iterator[nodes.Branch]:
    for tree in trees.values():
        yield from (node for node in nodes.walk(tree) if isinstance(node, nodes.Branch))


def _reads(pipe: nodes.Pipe, name: str) -> bool:
    return any(name in nodes.names_of(node) for node in nodes.walk([pipe]))

"""The plain forms of Go templates found in Modelfiles: fields, if/else, eq/and/or/not, range .Messages.

It knows nothing of variables, pipelines, functions and tools; a template with those is refused when compiled.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from localllm.chat.budget import Budget
from localllm.chat.conversation import BETWEEN_TURNS, Message, normalised, with_turns_merged
from localllm.errors import TemplateError

ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
WORD = re.compile(r'\s*(\.\w*|\$\.\w+|"(?:[^"\\]|\\.)*"|[()]|\w+)')
FIELDS = frozenset({"System", "Prompt", "Response", "Suffix", "Messages", "Role", "Content", "Thinking", "Think"})


@dataclass
class Block:
    """An action with what it encloses; a piece of text is a str beside it."""

    words: list[str]
    body: list[Any] = field(default_factory=list)
    otherwise: list[Any] = field(default_factory=list)


class Output:
    """The texts of one rendering, each charged to its budget."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.budget = Budget()

    def append(self, text: str) -> None:
        self.budget.spend(len(text))
        self.texts.append(text)


class CutAtResponse(Exception):  # noqa: N818 (control flow, not an error)
    """The prompt ends where the answer is to begin."""


class GoTemplate:
    """Renders a conversation as Ollama does: turn by turn, or with `.Messages` where the source uses that."""

    supports_tools = False
    supports_thinking = False
    # The texts around `.Thinking` inside the range over the messages, and the text by which tool calls begin.
    thinking_tags: tuple[str, str] | None = None
    tool_tag: str | None = None

    def __init__(self, source: str) -> None:
        """Raises: TemplateError for what this subset does not know."""
        self.uses_messages = ".Messages" in source
        self.supports_insert = ".Suffix" in source
        if not self.uses_messages and ".Response" not in source:
            source += "{{ .Response }}"
        tokens = list(_tokens(source))
        try:
            self._nodes = _parse(tokens)
        except RecursionError as error:
            raise TemplateError("Go template: nested too deeply") from error
        if tokens:
            raise TemplateError(f"Go template: unexpected {{{{ {tokens[0]} }}}}")

    def render(self, messages: list[Message], tools: Any = None, **variables: Any) -> str:
        """The prompt; a last message of the assistant is the beginning of its answer. The rest is not looked at.

        Raises: LimitError where it costs too much: loops in loops over the messages grow without bound.
        """
        messages = with_turns_merged(normalised(messages))
        if not self.uses_messages:
            return self._render_turns(messages)
        system = BETWEEN_TURNS.join(m["content"] for m in messages if m["role"] == "system")
        listed = [{"Role": m["role"], "Content": m["content"]} for m in messages]
        return self._run({"System": system, "Messages": listed, "Response": ""}, cut=False)

    def render_insert(self, prompt: str, suffix: str) -> str:
        """The prompt for text between `prompt` and `suffix`."""
        return self._run({"Prompt": prompt, "Suffix": suffix}, cut=True)

    def _render_turns(self, messages: list[Message]) -> str:
        turns: list[dict[str, str]] = [{}]
        for message in messages:
            name = {"system": "System", "assistant": "Response"}.get(message["role"], "Prompt")
            if name in turns[-1] or (name != "Response" and "Response" in turns[-1]):
                turns.append({})
            turns[-1][name] = message["content"]
        *earlier, last = turns
        return "".join(self._run(turn, cut=False) for turn in earlier) + self._run(last, cut=True)

    def _run(self, root: dict[str, Any], cut: bool) -> str:
        out = Output()
        with contextlib.suppress(CutAtResponse):
            _execute(self._nodes, root, root, out, cut)
        return "".join(out.texts)


def _tokens(source: str) -> Iterator[list[str] | str]:
    """Texts (str) and actions (lists of words), trim markers applied."""
    at, trims = 0, False
    for match in ACTION.finditer(source):
        text = source[at : match.start()]
        text = text.rstrip() if match[1] else text
        yield text.lstrip() if trims else text
        if not match[2].startswith("/*"):
            yield _words(match[2])
        at, trims = match.end(), bool(match[3])
    yield source[at:].lstrip() if trims else source[at:]


def _words(action: str) -> list[str]:
    words, at = [], 0
    while at < len(action.rstrip()):
        match = WORD.match(action, at)
        if not match:
            raise TemplateError(f"Go template: {{{{ {action} }}}} is not supported")
        words.append(match[1])
        at = match.end()
    return words


def _parse(tokens: list[Any]) -> list[Any]:
    """Nodes up to an `else` or `end`, which stays in `tokens`."""
    nodes: list[Any] = []
    while tokens and not (isinstance(tokens[0], list) and tokens[0][:1] in (["else"], ["end"])):
        token = tokens.pop(0)
        if isinstance(token, str):
            nodes.append(token)
        elif token[:1] == ["if"] or token == ["range", ".Messages"]:
            nodes.append(_parse_block(token, tokens))
        else:
            _check_value(token)
            nodes.append(Block(token))
    return nodes


def _parse_block(words: list[str], tokens: list[Any]) -> Block:
    if words[0] == "if":
        _check_value(words[1:])
    block = Block(words, _parse(tokens))
    if tokens and tokens[0][0] == "else":
        following = tokens.pop(0)[1:]
        if following:  # `else if` shares the `end` of its `if`
            block.otherwise = [_parse_block(following, tokens)]
            return block
        block.otherwise = _parse(tokens)
    if not tokens or tokens.pop(0) != ["end"]:
        raise TemplateError("Go template: {{ if }} or {{ range }} without {{ end }}")
    return block


def _check_value(words: list[str]) -> None:
    rest = list(words)
    _value(rest, {}, {})
    if rest:
        raise TemplateError(f"Go template: {{{{ {' '.join(words)} }}}} is not supported")


def _execute(nodes: list[Any], root: dict[str, Any], dot: dict[str, Any], out: Output, cut: bool) -> None:
    for node in nodes:
        if isinstance(node, str):
            out.append(node)
        elif node.words[0] == "range":
            for message in root["Messages"]:
                out.budget.step()
                _execute(node.body, root, message, out, cut)
        elif node.words[0] == "if":
            chosen = node.body if _value(node.words[1:], root, dot) else node.otherwise
            _execute(chosen, root, dot, out, cut)
        else:
            out.append(str(_value(list(node.words), root, dot)))
            if cut and node.words == [".Response"]:
                raise CutAtResponse


def _value(words: list[str], root: dict[str, Any], dot: dict[str, Any]) -> Any:
    """Evaluate one call, taking its words off the list."""
    head = words[0] if words else ""
    if head not in ("eq", "ne", "and", "or", "not"):
        return _operand(words, root, dot)
    words.pop(0)
    operands = [_operand(words, root, dot)]
    while words and words[0] != ")":
        operands.append(_operand(words, root, dot))
    first, *others = operands
    if head == "not":
        return not first
    if head in ("eq", "ne"):
        return (first in others) == (head == "eq")
    return next((o for o in operands[:-1] if bool(o) == (head == "or")), operands[-1])


def _operand(words: list[str], root: dict[str, Any], dot: dict[str, Any]) -> Any:
    word = words.pop(0) if words else ""
    if word == "(":
        value = _value(words, root, dot)
        if words[:1] != [")"]:
            raise TemplateError("Go template: unbalanced parentheses")
        words.pop(0)
        return value
    if word.startswith('"'):
        return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), word[1:-1])
    name = word.removeprefix("$").removeprefix(".")
    if not word.startswith((".", "$")) or name not in FIELDS:
        raise TemplateError(f'Go template: "{word}" is not supported')
    return (root if word.startswith("$") else dot).get(name, "")

"""Calls written as Python: `[f(a="b"), g(n=3)]`; nothing of it is run, and it finds no tags in a stream."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass, field
from typing import Any

from localllm.chat.parts import ToolCall
from localllm.chat.tools.declared import Tools
from localllm.chat.tools.json_text import well_formed
from localllm.chat.tools.syntax import Step

_JSON_NAMES = {"true": True, "false": False, "null": None}
_MAX_CHARS = 100_000
_INTERPRETERS = ("python", "ipython", "code_interpreter")


@dataclass(frozen=True)
class PythonCalls:
    """A call, or a list of calls, or calls line by line, from an opener to the first of `closers`, or to the end.

    Where one of them is no call of a declared tool, all of it is text. `runs_code` takes text that is no call for the
    argument `code` of a declared interpreter.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    runs_code: bool = False
    is_only_first: bool = False
    trailers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trailers", self.closers)

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.openers, *self.closers)

    def read(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        n_opener = max(len(o) for o in self.openers if text.startswith(o))
        end = self._end(text, n_opener, tools)
        if end is None and not is_end:
            return None
        end = len(text) if end is None else end
        if not tools.tail.may_try(self, text, end, self.openers):
            return Step(n_opener)
        calls = _calls(text[n_opener:end], tools) or self._code(text[n_opener:end], tools)
        return Step(end, calls) if calls else Step(n_opener)

    def read_next(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        return Step(0)

    def _end(self, text: str, at: int, tools: Tools) -> int | None:
        """Where the first closer stands."""
        at = tools.progress.take(self, text, at)
        ends = [end for closer in self.closers if (end := tools.tail.find(text, closer, at)) >= 0]
        if not ends:
            longest = max(map(len, self.closers), default=0)
            tools.progress.keep(self, text, max(at, len(text) - longest + 1))
        return min(ends, default=None)

    def _code(self, text: str, tools: Tools) -> tuple[ToolCall, ...]:
        if not self.runs_code or not text.strip():
            return ()
        calls = (tools.call(name, {"code": text.strip()}) for name in _INTERPRETERS)
        return tuple(call for call in calls if call)[:1]


def _calls(text: str, tools: Tools) -> tuple[ToolCall, ...]:
    nodes = _expressions(text)
    calls = [_call(node, tools) for node in nodes]
    return tuple(call for call in calls if call) if all(calls) else ()


def _expressions(text: str) -> list[ast.expr]:
    """The calls in a list, in a tuple or on lines of their own; none where it is no Python."""
    if len(text) > _MAX_CHARS:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that Python does not know
            statements = ast.parse("\n".join(line.strip() for line in text.strip().splitlines())).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    nodes: list[ast.expr] = []
    for statement in statements:
        value = statement.value if isinstance(statement, ast.Expr) else ast.Constant(None)
        nodes += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    return nodes


def _call(node: ast.expr, tools: Tools) -> ToolCall | None:
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func).removesuffix(".call")
    known = tools.name(name)
    if known is None or len(node.args) > len(tools.properties(known)):
        return None
    try:
        arguments = {key: _literal(arg) for key, arg in zip(tools.properties(known), node.args, strict=False)}
        arguments |= {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords if keyword.arg}
    except (ValueError, RecursionError):
        return None
    return tools.call(known, arguments)


def _literal(node: ast.expr) -> Any:
    """The value of a literal, Python's or JSON's. Raises: ValueError for anything else."""
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_literal(k)): _literal(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    value = ast.literal_eval(node)
    if value is not None and not isinstance(value, str | int | float | bool):
        raise ValueError("no JSON value")
    return well_formed(value)

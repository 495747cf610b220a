"""Calls written as JSON objects with a name and arguments, between whatever tags; it finds no tags in a stream."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from localllm.chat.parts import ToolCall
from localllm.chat.tools.declared import Tools
from localllm.chat.tools.json_text import parsed
from localllm.chat.tools.syntax import Step

_NAMES = ("name", "tool_name", "function", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args")
_FENCES = ("```json", "```")
_BLANK = re.compile(r"\s*")
_MAX_SKIPPED = 8
_SEPARATORS = re.compile(r"[\s,;]*")
_FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')
_BEGUN_OBJECT = re.compile(r'\{\s*($|"|\})')
_EARLY_NAME = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"')


@dataclass(frozen=True)
class JsonCalls:
    """`opener {…}`, `opener [{…}, {…}] trailer` and the like.

    Without openers of its own (`is_only_first`) the object is the answer's beginning itself; then the name must be
    known and arguments be there, and what cannot become a call is let go as early as possible.
    """

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    is_only_first: bool = False
    trailers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        loose = ("]", ";") if self.is_only_first else ("]", "}", *_FENCES)
        object.__setattr__(self, "trailers", (*self.closers, *loose))

    @property
    def tags(self) -> tuple[str, ...]:
        return () if self.is_only_first else (*self.openers, *self.closers)

    def read(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        opener = "" if self.is_only_first else max((o for o in self.openers if text.startswith(o)), key=len)
        at = self._object_start(text, len(opener), is_end)
        if at is None:
            return None
        return self._object(text, at, tools, is_end) if at >= 0 else Step(max(1, len(opener)))

    def read_next(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        match = _SEPARATORS.match(text)
        at = match.end() if match else 0
        if at == len(text):
            return Step(0) if is_end else None
        return self._object(text, at, tools, is_end) if text[at] == "{" else Step(0)

    def _object_start(self, text: str, at: int, is_end: bool) -> int | None:
        """Where the first object begins, after a list's bracket and other tags; -1 if there is none, None: wait."""
        skipped = ("[", *_FENCES, *(() if self.is_only_first else self.openers))
        longest = max(map(len, skipped))
        for _ in range(_MAX_SKIPPED):
            at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
            rest = text[at : at + longest + 1]
            if rest.startswith("{"):
                return at
            found = max((s for s in skipped if rest.startswith(s)), key=len, default="")
            if not is_end and any(s != found and s.startswith(rest) for s in skipped):
                return None
            if not found:
                return -1
            at += len(found)
        return -1  # a model that writes one tag after another

    def _object(self, text: str, at: int, tools: Tools, is_end: bool) -> Step | None:
        if self.is_only_first and not _may_be_call(text[at:], tools):
            return Step(1)
        end = tools.json_end(text, at, is_end)
        if end is None:
            return Step(1) if is_end else None
        call = self._call(parsed(text[at:end]), tools)
        return Step(end, (call,)) if call else Step(end)

    def _call(self, value: Any, tools: Tools) -> ToolCall | None:
        if not isinstance(value, dict):
            return None
        if isinstance(value.get("function"), dict):
            value = {**value["function"], **{k: v for k, v in value.items() if k == "id"}}
        name = next((value[key] for key in _NAMES if key in value), None)
        key = next((key for key in _ARGUMENTS if key in value), None)
        if name is None and len(value) == 1:  # {"the tool's name": {arguments}}
            ((name, arguments),) = value.items()
            return tools.call(name, arguments)
        if key is None and self.is_only_first:
            return None
        arguments = value[key] if key else {}
        return tools.call(name, {} if arguments is None else arguments, value.get("id"))


def _may_be_call(text: str, tools: Tools) -> bool:
    """Whether an object that is still being written can become a call of a tool that is known."""
    if not _BEGUN_OBJECT.match(text):
        return False
    if (key := _FIRST_KEY.match(text)) and key[1] not in (*_NAMES, *_ARGUMENTS, "type", "id"):
        return tools.name(key[1]) is not None
    name = _EARLY_NAME.match(text)
    return name is None or tools.name(name[1]) is not None

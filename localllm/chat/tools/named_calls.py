"""Calls written as a name and then JSON arguments: `<tag>name<tag>{…}<tag>`; it finds no tags in a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import regex  # type: ignore[import-untyped]

from localllm.chat.tools.declared import Tools
from localllm.chat.tools.json_text import parsed
from localllm.chat.tools.syntax import Step

NAME = r"""(?P<name>[^\s<>\[\]{}()|,"'`]+?)"""
"""A tool's name, up to whatever follows it in a pattern."""


@dataclass(frozen=True)
class NamedCalls:
    """`head` is a pattern from an opener to just before the arguments, with groups `name` and perhaps `id`.

    `marks` are the tags that the pattern spells.
    """

    openers: tuple[str, ...]
    head: str
    closers: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    is_only_first: bool = False
    trailers: tuple[str, ...] = field(init=False)
    _pattern: Any = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trailers", (*self.closers, "```"))
        object.__setattr__(self, "_pattern", regex.compile(self.head + r"\s*(?=\{)"))

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.openers, *self.closers, *self.marks)

    def read(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        n_opener = max(len(o) for o in self.openers if text.startswith(o))
        head = self._pattern.match(text, partial=True)
        if head is None or (is_end and head.partial):
            return Step(n_opener)
        if head.partial:
            return None
        end = tools.json_end(text, head.end(), is_end)
        if end is None:
            return Step(n_opener) if is_end else None
        groups = head.groupdict()
        call = tools.call(groups["name"], parsed(text[head.end() : end]), groups.get("id"))
        return Step(end, (call,)) if call else Step(end)

    def read_next(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        return Step(0)

"""Calls whose arguments are elements with plain text inside; it finds no tags in a stream."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import regex  # type: ignore[import-untyped]

from localllm.chat.tools.declared import Tools
from localllm.chat.tools.syntax import Step

Texts = dict[str, tuple[str, str | None]]
"""The text of each argument, and what its `string` said."""


@dataclass(frozen=True)
class XmlCalls:
    """`head` is a pattern from an opener to the first argument, with a group `name`; `argument` the pattern before a
    value, with a group `key` and perhaps `string`, which says "true" or "false"; `argument_end` the text after it, in
    which `{key}` is the key; `end` the text after the last.

    A value loses one line break at each end, and becomes what the tool's schema says it is.
    """

    openers: tuple[str, ...]
    head: str
    argument: str
    argument_end: str
    end: str
    closers: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    is_only_first: bool = False
    trailers: tuple[str, ...] = field(init=False)
    _head: Any = field(init=False, compare=False)
    _item: Any = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trailers", self.closers)
        object.__setattr__(self, "_head", regex.compile(self.head))
        item = rf"\s*(?:(?P<end>{re.escape(self.end)})|{self.argument})"
        object.__setattr__(self, "_item", regex.compile(item, regex.DOTALL))

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.openers, self.argument_end, self.end, *self.closers, *self.marks)

    def read(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        rejected = Step(max(len(o) for o in self.openers if text.startswith(o)))
        head = self._head.match(text, partial=True)
        if head is None:
            return rejected
        end, texts = (None, {}) if head.partial else self._arguments(text, head.end(), tools, is_end)
        if end is None:
            return rejected if is_end else None
        if end < 0:
            return rejected
        name = head["name"].strip()
        values = {key: self._value(tools, name, key, *value) for key, value in texts.items()}
        call = tools.call(name, values)
        return Step(end, (call,)) if call else Step(end)

    def read_next(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        return Step(0)

    def _arguments(self, text: str, at: int, tools: Tools, is_end: bool) -> tuple[int | None, Texts]:
        """Where the call ends (None: not yet, -1: it is none), and its arguments' texts."""
        texts: Texts
        failed, n = tools.tail.fact(self, text, lambda _: set())  # places from which on it is no call
        passed: list[int] = []
        at, texts, searched = tools.progress.take(self, text, (at, {}, 0))
        while True:
            passed.append(at + n)
            item = None if at + n in failed else self._item.match(text, at, partial=True)
            if item is None:
                failed.update(passed)
                return -1, {}
            if not item.partial and item["end"] is not None:
                return item.end(), texts
            close = "" if item.partial else self.argument_end.replace("{key}", item["key"].strip())
            end = -1 if item.partial else tools.tail.find(text, close, max(item.end(), searched))
            if end < 0:
                searched = 0 if item.partial else max(item.end(), len(text) - len(close) + 1)
                tools.progress.keep(self, text, (at, texts, searched))
                failed.update(passed if is_end else ())
                return None, {}
            texts[item["key"].strip()] = text[item.end() : end], item.groupdict().get("string")
            at = end + len(close)

    def _value(self, tools: Tools, name: str, key: str, text: str, string: str | None) -> Any:
        text = text.removeprefix("\n").removesuffix("\n")
        return text if string == "true" else tools.value(name, key, text)

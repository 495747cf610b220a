"""Calls as Gemma's models for functions write them: `call:name{key:<quote>text<quote>,n:3}`; it finds no tags."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import regex  # type: ignore[import-untyped]

from localllm.chat.tools.declared import Tools
from localllm.chat.tools.json_text import parsed
from localllm.chat.tools.named_calls import NAME
from localllm.chat.tools.syntax import Step
from localllm.chat.tools.tail import closer_after

_KEY = re.compile(r'([{,]\s*)([^\s{}\[\],:"]+)\s*:')


@dataclass(frozen=True)
class GemmaCalls:
    """`opener call:name{…} closer`, where strings stand between two texts `quote` and keys have no quotes."""

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    quote: str
    is_only_first: bool = False
    trailers: tuple[str, ...] = field(init=False)
    _head: Any = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trailers", self.closers)
        openers = "|".join(re.escape(o) for o in self.openers)
        object.__setattr__(self, "_head", regex.compile(rf"(?:{openers})\s*(?:call:\s*)?{NAME}\s*(?=\{{)"))

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.openers, *self.closers, self.quote)

    def read(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        rejected = Step(max(len(o) for o in self.openers if text.startswith(o)))
        head = self._head.match(text, partial=True)
        if head is None or (is_end and head.partial):
            return rejected
        end = None if head.partial else self._end(text, head.end(), tools, is_end)
        if end is None:
            if not is_end or head.partial:
                return None
            end = len(text)
        if not tools.tail.may_try(self, text, end, self.openers):
            return rejected
        call = tools.call(head["name"], parsed(self._as_json(text[head.end() : end])))
        return Step(end, (call,)) if call else rejected

    def read_next(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        return Step(0)

    def _end(self, text: str, at: int, tools: Tools, is_end: bool) -> int | None:
        """Where the closer stands that is not inside a string."""
        if is_end:
            after, n = tools.tail.fact(self, text, lambda rest: closer_after(rest, self.quote, self.closers))
            end: int | None = after(at + n)
            return None if end is None else end - n
        at, is_inside = tools.progress.take(self, text, (at, False))
        while True:
            quote = text.find(self.quote, at)
            found = [n for closer in self.closers if (n := text.find(closer, at, None if quote < 0 else quote)) >= 0]
            if found and not is_inside:
                return min(found)
            if quote < 0:
                tools.progress.keep(self, text, (at, is_inside))
                return None
            at, is_inside = quote + len(self.quote), not is_inside

    def _as_json(self, text: str) -> str:
        pieces = text.split(self.quote)
        return "".join(json.dumps(p) if i % 2 else _KEY.sub(_quoted, p) for i, p in enumerate(pieces))


def _quoted(match: re.Match[str]) -> str:
    return f"{match[1]}{json.dumps(match[2])}:"

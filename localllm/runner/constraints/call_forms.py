"""How a model writes a call of a tool, told from its template; it knows no schemas.

The form is what the template itself writes of a call in a conversation, cut where an answer ends. It counts only if the
reader of answers takes it for that call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from localllm.chat import ToolCall
from localllm.chat.tools import CallReader, Tools, syntaxes_of
from localllm.chat.tools.detect import PROBE, PROBE_ARGUMENTS, written_call
from localllm.chat.tools.json_calls import JsonCalls
from localllm.chat.tools.json_text import parsed, span_end
from localllm.chat.tools.syntax import Syntax
from localllm.runner.templates import Template

ARGUMENTS = '{"probe_key":"probe_value"}'
TWO_ARGUMENTS = {"probe_key": "probe_value", "other_key": "other_value"}


@dataclass(frozen=True)
class Elements:
    """Arguments one by one: `before` the key, `middle`, the value, `after`. Strings stand as they are, other values as
    JSON."""

    before: str
    middle: str
    after: str

    def example(self) -> str:
        """Two arguments."""
        return "".join(f"{self.before}{k}{self.middle}{v}{self.after}" for k, v in TWO_ARGUMENTS.items())


@dataclass(frozen=True)
class Parts:
    """A call is `before`, the name, `middle`, the arguments, `after`. Arguments are a JSON object, or `elements`."""

    before: str
    middle: str
    after: str
    elements: Elements | None = None

    def example(self, name: str = PROBE) -> str:
        """A call as the model would write it."""
        arguments = self.elements.example() if self.elements else ARGUMENTS
        return f"{self.before}{name}{self.middle}{arguments}{self.after}"

    @property
    def is_name_json(self) -> bool:
        """Whether the name is a JSON string."""
        return self.before.endswith('"') and self.middle.startswith('"')


@dataclass(frozen=True)
class CallForm:
    """How a call is written, in which any id may stand for `PROBE_ID`.

    `again` is what a call that comes after another begins with instead. `openers` are all texts that begin a call in
    the eyes of the reader; those of `first_openers` only where an answer begins.
    """

    parts: Parts
    again: str
    openers: tuple[str, ...]
    first_openers: tuple[str, ...] = ()

    @property
    def is_anywhere(self) -> bool:
        """Whether text may come before a call."""
        return self.parts.before.startswith(self.openers)


@lru_cache(64)
def call_form(template: Template, begun: str, ends: tuple[str, ...]) -> CallForm | None:
    """The form of a template's calls, None where none is known.

    `begun` is the end of the prompt that belongs to the syntax, `ends` are the texts that end an answer.
    """
    syntaxes = syntaxes_of(template)
    ways = (
        _cut(written_call(template), ends),
        _canonical(syntaxes),
        _cut_elements(written_call(template, TWO_ARGUMENTS), ends),
    )
    parts = next((found for found in ways if found and _is_read(found, syntaxes, begun)), None)
    if parts is None or not (parts.before or begun):
        return None
    openers = tuple(o for s in syntaxes if not s.is_only_first for o in s.openers)
    first = tuple(o for s in syntaxes if s.is_only_first for o in s.openers)
    return CallForm(parts, parts.before or begun, openers, first)


def _cut(written: str, ends: Sequence[str]) -> Parts | None:
    """The texts before the name, between name and JSON arguments, and after them, up to what ends an answer."""
    at = next((m.start() for m in re.finditer(r"\{", written) if _is_arguments(written, m.start())), None)
    name = written.find(PROBE)
    if at is None or not 0 <= name < at:
        return None
    after = written[span_end(written, at) :]
    return Parts(written[:name].lstrip(), written[name + len(PROBE) : at], _up_to_end(after, ends))


def _is_arguments(text: str, at: int) -> bool:
    end = span_end(text, at)
    return end is not None and parsed(text[at:end]) == PROBE_ARGUMENTS


def _up_to_end(text: str, ends: Sequence[str]) -> str:
    end = min((n for mark in ends if (n := text.find(mark)) >= 0), default=len(text))
    return text[:end].rstrip()


def _cut_elements(written: str, ends: Sequence[str]) -> Parts | None:
    """The texts of a call with two arguments, told from one another by what stands before both."""
    texts: list[str] = []
    rest = written
    for word in (PROBE, *(word for pair in TWO_ARGUMENTS.items() for word in pair)):
        text, found, rest = rest.partition(word)
        if not found:
            return None
        texts.append(text)
    before, head, middle, between, other_middle = texts
    common = next((n for n in range(min(len(head), len(between)), 0, -1) if head[-n:] == between[-n:]), 0)
    start = re.search(r"<[^<]*$", head[len(head) - common :])
    # Where an attribute tells the type, or what ends an argument has its key, texts are not the same for all arguments.
    if start is None or middle != other_middle or "string" in middle or "probe_key" in between:
        return None
    end = between.removesuffix(start[0])
    shown_end = end if rest.startswith(end) else end.rstrip()
    if not end.strip() or not rest.startswith(shown_end):
        return None
    after = _up_to_end(rest[len(shown_end) :], ends)
    return Parts(before.lstrip(), head.removesuffix(start[0]), after, Elements(start[0], middle, end))


def _canonical(syntaxes: tuple[Syntax, ...]) -> Parts | None:
    """The usual way of writing an object between tags, where a template shows none."""
    first = syntaxes[0] if syntaxes else None
    if not isinstance(first, JsonCalls) or first.is_only_first:
        return None
    closer = f"\n{first.closers[0]}" if first.closers else ""
    return Parts(f'{first.openers[0]}\n{{"name": "', '", "arguments": ', "}" + closer)


def _is_read(parts: Parts, syntaxes: tuple[Syntax, ...], begun: str) -> bool:
    reader = CallReader(syntaxes, Tools([{"name": PROBE, "parameters": {"type": "object"}}]), begun)
    read = [*reader.feed(parts.example()), *reader.flush()]
    wanted = TWO_ARGUMENTS if parts.elements else PROBE_ARGUMENTS
    return len(read) == 1 and isinstance(call := read[0], ToolCall) and (call.name, call.arguments) == (PROBE, wanted)

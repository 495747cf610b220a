"""How a model writes a call of a tool whose arguments are JSON, told from its template; it knows no schemas.

The form is what the template itself writes of a call in a conversation, cut where an answer ends. It counts only if the
reader of answers takes it for that call.
"""

from __future__ import annotations

import re
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


@dataclass(frozen=True)
class CallForm:
    """A call is `before` (or `again` where one came before it), the name, `middle`, the arguments, `after`.

    Where `PROBE_ID` stands in one of the texts, the model makes up an id. `openers` are all texts that begin a call in
    the eyes of the reader; those of `first_openers` only where an answer begins.
    """

    before: str
    middle: str
    after: str
    again: str
    openers: tuple[str, ...]
    first_openers: tuple[str, ...] = ()
    is_name_json: bool = False

    def example(self, name: str = PROBE) -> str:
        """A call as the model would write it."""
        return f"{self.before}{name}{self.middle}{ARGUMENTS}{self.after}"


@lru_cache(64)
def call_form(template: Template, begun: str, ends: tuple[str, ...]) -> CallForm | None:
    """The form of a template's calls, None where arguments are not JSON or nothing is known of them.

    `begun` is the end of the prompt that belongs to the syntax, `ends` are the texts that end an answer.
    """
    syntaxes = syntaxes_of(template)
    written = written_call(template)
    found = _cut(written, ends) if written else None
    for parts in (found, _canonical(syntaxes)):
        if (
            parts is not None
            and (form := _form(parts, syntaxes, begun)) is not None
            and _is_read(form, syntaxes, begun)
        ):
            return form
    return None


def _cut(written: str, ends: tuple[str, ...]) -> tuple[str, str, str] | None:
    """The texts before the name, between name and arguments, and after them, up to what ends an answer."""
    at = next((m.start() for m in re.finditer(r"\{", written) if _is_arguments(written, m.start())), None)
    name = written.find(PROBE)
    if at is None or not 0 <= name < at:
        return None
    after = written[span_end(written, at) :]
    end = min((n for text in ends if (n := after.find(text)) >= 0), default=len(after))
    return written[:name].lstrip(), written[name + len(PROBE) : at], after[:end].rstrip()


def _is_arguments(text: str, at: int) -> bool:
    end = span_end(text, at)
    return end is not None and parsed(text[at:end]) == PROBE_ARGUMENTS


def _canonical(syntaxes: tuple[Syntax, ...]) -> tuple[str, str, str] | None:
    """The usual way of writing an object between tags, where a template shows none."""
    first = next((s for s in syntaxes if isinstance(s, JsonCalls) and not s.is_only_first), None)
    if first is None or (syntaxes and not isinstance(syntaxes[0], JsonCalls)):
        return None
    closer = f"\n{first.closers[0]}" if first.closers else ""
    return f'{first.openers[0]}\n{{"name": "', '", "arguments": ', "}" + closer


def _form(parts: tuple[str, str, str], syntaxes: tuple[Syntax, ...], begun: str) -> CallForm | None:
    before, middle, after = parts
    again = before or begun
    if not again:
        return None
    openers = tuple(o for s in syntaxes if not s.is_only_first for o in s.openers)
    first = tuple(o for s in syntaxes if s.is_only_first for o in s.openers)
    return CallForm(before, middle, after, again, openers, first, before.endswith('"') and middle.startswith('"'))


def _is_read(form: CallForm, syntaxes: tuple[Syntax, ...], begun: str) -> bool:
    tools = Tools([{"name": PROBE, "parameters": {"type": "object"}}])
    reader = CallReader(syntaxes, tools, begun)
    parts = [*reader.feed(form.example()), *reader.flush()]
    return [(p.name, p.arguments) for p in parts if isinstance(p, ToolCall)] == [(PROBE, PROBE_ARGUMENTS)] and len(
        parts
    ) == 1

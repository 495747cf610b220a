"""Finds out how a model writes tool calls, from its template; it knows nothing of any one request.

What the template makes of a call in a conversation counts first: a known family's tags, else whatever stands around
the call. A template that writes no calls may still name the tags in its source. What a Go template has before the
first brace of its `.ToolCalls` is a tag as well.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Protocol

from localllm.chat.conversation import Message
from localllm.chat.tools.families import BARE, HERMES, LLAMA, family_of
from localllm.chat.tools.json_calls import JsonCalls
from localllm.chat.tools.json_text import parsed, span_end
from localllm.chat.tools.named_calls import NAME, NamedCalls
from localllm.chat.tools.syntax import Syntax
from localllm.errors import TemplateError

PROBE, PROBE_ID = "probe_call", "call00000"
"""The function of the call that a template is made to write, and the call's id."""
_KEY, _VALUE = "probe_key", "probe_value"
PROBE_ARGUMENTS = {_KEY: _VALUE}
_TOOL = {
    "type": "function",
    "function": {
        "name": PROBE,
        "description": "probe",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "probe"}}},
    },
}
_USER: Message = {"role": "user", "content": "probe_user"}
_SAYING: Message = {"role": "assistant", "content": "probe_said"}
_RESULT: Message = {"role": "tool", "content": "probe_result", "name": PROBE, "tool_call_id": PROBE_ID}


class Template(Protocol):
    """What is needed of a template."""

    def render(self, messages: list[Message], tools: Any = None, **variables: Any) -> str: ...


@lru_cache(64)
def syntaxes_of(template: Template) -> tuple[Syntax, ...]:
    """The ways in which the model may write calls, the likeliest first."""
    source = str(getattr(template, "source", ""))
    written = written_call(template)
    is_own = "<tool_call>" not in written or "<tool_call>" in source or not source
    found = family_of(written) if written and is_own else None
    if found is not None:
        return found.syntaxes
    if written and is_own and (derived := _derived(template, written)):
        return derived
    tag = getattr(template, "tool_tag", None)
    hinted = family_of(f"{source} {tag or ''}")
    syntaxes = hinted.syntaxes if hinted else _by_tag(tag)
    return syntaxes if HERMES in syntaxes else (*syntaxes, HERMES)


def begun_by(prompt: str) -> str:
    """The end of a prompt that belongs to the syntax of calls: functionary's `>>>`."""
    return ">>>" if prompt.endswith(">>>") else ""


def written_call(template: Template, arguments: dict[str, str] = PROBE_ARGUMENTS) -> str:
    """What the template makes of an answer that is one call, from the end of the prompt on; "" if it writes none."""
    call = {"id": PROBE_ID, "type": "function", "function": {"name": PROBE, "arguments": arguments}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    said = _rendered(template, [_USER, _SAYING], False)
    heads = (_rendered(template, [_USER], True), said[: said.rfind("probe_said")])
    for messages in ([_USER, calling], [_USER, calling, _RESULT]):
        text = _rendered(template, messages, False)
        answer = text[max(_n_common(head, text) for head in heads) :].split("probe_result")[0]
        if _VALUE in answer and PROBE in text[text.rfind("probe_user") :]:
            return _from_header(text, text.rfind("probe_user"), answer)
    return ""


def _rendered(template: Template, messages: list[Message], add_generation_prompt: bool) -> str:
    try:
        return template.render(messages, tools=[_TOOL], add_generation_prompt=add_generation_prompt)
    except TemplateError:
        return ""


def _n_common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _from_header(text: str, user: int, answer: str) -> str:
    """The answer; where the prompt and the call share the beginning of a tag, the whole of it."""
    at = text.rfind(answer)
    begin = max(text.rfind(c, user, at) for c in "<[>")
    return text[begin:at] + answer if begin >= 0 and not re.search(r"[>\]\s]", text[begin:at]) else answer


def _by_tag(tag: str | None) -> tuple[Syntax, ...]:
    """The rule of Ollama for Go templates: a brace or bracket is a call without a tag, at the answer's beginning."""
    tag = (tag or "").strip()
    if not tag:
        return ()
    return (BARE,) if tag in ("{", "[") else (JsonCalls((tag,)),)


def _derived(template: Template, written: str) -> tuple[Syntax, ...]:
    """A syntax made of what stands around a call of which the arguments are JSON."""
    at = next((m.start() for m in re.finditer(r"\{", written) if _is_arguments(written, m.start())), None)
    if at is None:
        return ()
    end = span_end(written, at)
    whole = _enclosing(written, at)
    if whole is None:
        return _named(written[:at], _trailer(template, written[end:]))
    before = written[: whole[0]].strip().removesuffix("[").strip()
    if not before:
        return LLAMA if "parameters" in written else (BARE,)
    trailer = _trailer(template, written[whole[1] :].lstrip().removeprefix("]"))
    return (JsonCalls((before,), (trailer,) if trailer else ()),)


def _is_arguments(text: str, at: int) -> bool:
    end = span_end(text, at)
    return end is not None and parsed(text[at:end]) == PROBE_ARGUMENTS


def _enclosing(text: str, at: int) -> tuple[int, int] | None:
    """Begin and end of the object that holds the name and the arguments at `at`, if one does."""
    for match in re.finditer(r"\{", text[:at]):
        end = span_end(text, match.start())
        if end is not None and PROBE in json.dumps(parsed(text[match.start() : end])):
            return match.start(), end
    return None


def _named(before: str, trailer: str) -> tuple[Syntax, ...]:
    """Arguments on their own, with the name somewhere before them."""
    opener, _, middle = before.partition(PROBE)
    opener = opener.strip()
    if not opener or PROBE not in before:
        return ()
    head = rf"{re.escape(opener)}\s*{NAME}\s*{re.escape(middle.strip())}"
    return (NamedCalls((opener,), head, (trailer,) if trailer else (), marks=(middle.strip(),)),)


def _trailer(template: Template, after: str) -> str:
    """What follows a call, without what ends any answer."""
    said = _rendered(template, [_USER, _SAYING], False)
    turn_end = said[said.rfind("probe_said") + len("probe_said") :].strip()
    return after.strip().removesuffix(turn_end).strip() if turn_end else after.strip()

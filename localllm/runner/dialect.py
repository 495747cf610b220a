"""How one model's template wants conversations, and how answers to its prompts are read; it knows no tokens."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from localllm.chat import AnswerReader, HarmonyReader, Reader, ThinkingSplitter, thinking_arguments, thinking_tags_of
from localllm.chat.conversation import Message, flattened
from localllm.chat.harmony import ANALYSIS, FINAL, MESSAGE, NEXT, has_json_calls, history, is_harmony
from localllm.chat.thinking_tags import is_open
from localllm.chat.tools import CallReader, Tools, begun_by, syntaxes_of
from localllm.messages import GenerateRequest
from localllm.runner.constraints import Frame
from localllm.runner.templates import Template

ToolList = list[dict[str, Any]] | None


class Dialect:
    """What follows from a template alone: its tags of thinking, its syntaxes of calls, whether it has channels."""

    def __init__(self, template: Template) -> None:
        self._template = template
        source = str(getattr(template, "source", ""))
        self._is_harmony = is_harmony(source)
        self._has_json_calls = has_json_calls(source)
        self._thinking = None if self._is_harmony else thinking_tags_of(template)

    def render(self, request: GenerateRequest, messages: list[Message], tools: ToolList) -> str:
        """The prompt. Raises: TemplateError."""
        variables = {**self._variables(request), **request.template_arguments}
        messages = history(messages) if self._is_harmony and self._has_json_calls else messages
        return self._continued(self._template.render(messages, tools=tools, **variables), messages)

    def tags(self, tools: ToolList) -> tuple[str, ...]:
        """The texts by which answers are read; those that are control tokens must be visible to the reader."""
        thinking = self._thinking.texts if self._thinking else HarmonyReader.tags if self._is_harmony else ()
        if not tools or (self._is_harmony and self._has_json_calls):
            return thinking
        return (*thinking, *(tag for syntax in syntaxes_of(self._template) for tag in syntax.tags))

    def reader(self, prompt: str, messages: list[Message], tools: ToolList, hidden: Iterable[str]) -> Reader:
        """What takes the answer to a prompt apart. The texts `hidden` are shown nowhere."""
        declared = Tools(tools) if tools else None
        if self._is_harmony and self._has_json_calls:
            return HarmonyReader(declared, is_final=_beginning(messages) != "")
        calls = CallReader(syntaxes_of(self._template), declared, begun_by(prompt)) if declared else None
        if self._is_harmony:
            return HarmonyReader(None, _beginning(messages) != "", calls)
        tags = self._thinking
        splitter = ThinkingSplitter(self._is_open(prompt, messages), tags) if tags else None
        return AnswerReader(splitter, calls, {*hidden, *(tags.wrappers if tags else ())})

    def frame(self, request: GenerateRequest, prompt: str, messages: list[Message], tools: ToolList) -> Frame:
        """What a constraint must know of the answer to a prompt."""
        tags, begun = self._thinking, _beginning(messages)
        is_thinking = tags is not None and self._is_open(prompt, messages)
        has_thought = tags is not None and tags.close in begun
        if tags is not None and has_thought:
            begun = begun.rpartition(tags.close)[2].lstrip()
        is_other = self._is_harmony and not self._has_json_calls
        return Frame(
            tags=tags,
            may_think=request.think is not False and not has_thought,
            is_thinking=is_thinking,
            has_channels=self._is_harmony and self._has_json_calls,
            begun="" if is_thinking else begun,
            call_begun=begun_by(prompt) if tools else "",
            template=self._template if tools else None,
            problem="structured output is not supported with the channels of this model's template" if is_other else "",
        )

    def _variables(self, request: GenerateRequest) -> dict[str, Any]:
        """Models that can think do so unless told otherwise; what they think nevertheless is still told apart. With
        channels they always think, and `max` is unknown."""
        if not self._template.supports_thinking:
            return {}
        think = True if request.think is None else request.think
        if self._is_harmony:
            think = {False: "low", "max": "high"}.get(think, think)
        return thinking_arguments(think)

    def _is_open(self, prompt: str, messages: list[Message]) -> bool:
        """Whether the answer begins inside thinking: by the end of the prompt, or by what the answer begins with."""
        assert self._thinking is not None
        begun = _beginning(messages)
        return is_open(prompt, self._thinking) or begun.rfind(self._thinking.open) > begun.rfind(self._thinking.close)

    def _continued(self, text: str, messages: list[Message]) -> str:
        """The prompt of an answer that has been begun: after its thinking, where the template left that open."""
        begun = _beginning(messages)
        if not begun or not text.endswith(begun):
            return text
        head, thinking = text.removesuffix(begun), messages[-1].get("thinking") or ""
        if self._is_harmony and not self._has_json_calls:
            return head + MESSAGE + begun
        if self._is_harmony:
            return head + (f"{ANALYSIS}{thinking}{NEXT}" if thinking else "") + FINAL + begun
        tags = self._thinking
        if tags is None or tags.close in begun or not is_open(head, tags):
            return text
        return f"{head.rstrip()}\n{thinking}\n{tags.close}\n\n{begun}"


@lru_cache(16)
def dialect_of(template: Template) -> Dialect:
    """The dialect of a template, looked at once."""
    return Dialect(template)


def _beginning(messages: list[Message]) -> str:
    """What an answer has been begun with: the text of a last message of the assistant."""
    last = messages[-1] if len(messages) > 1 else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return ""
    return flattened(last.get("content"))

"""A model's Jinja chat template: conversation in, prompt text out; it knows nothing of tokens or requests."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateError as JinjaError

from localllm.chat import conversation
from localllm.chat.budget import Budget, LimitError
from localllm.chat.call_texts import writer_for
from localllm.chat.conversation import Message
from localllm.chat.sandbox import ChatEnvironment
from localllm.chat.thinking_tags import tags_named_in
from localllm.errors import TemplateError

MAX_SOURCE_CHARS = 1024 * 1024

# What a model without a template is given.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string", "description": "probe"}}},
    },
}
PROBE_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"k": "probe_value"}}}
USER: Message = {"role": "user", "content": "hello"}
PROBE_TURNS: list[Message] = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]},
    {"role": "tool", "content": "probe_result", "name": "f", "tool_call_id": "call00000"},
]

# What shows in a source that calls, and results, of tools are printed.
CALL_MARKS = ("tool_calls", "assistant_tool_call")
_ROLES = [f"{name} == {quote}tool{quote}" for quote in "'\"" for name in ("role']", 'role"]', "message.role")]
RESULT_MARKS = ("tool_response", "tool_results", "ipython", *_ROLES)

Adaption = Callable[[list[Message]], list[Message]]


def _unchanged(messages: list[Message]) -> list[Message]:
    return messages


# How past tool calls can be left to a template to write, the most usual first.
CALL_STYLES: tuple[Adaption, ...] = (
    _unchanged,
    conversation.with_string_arguments,
    conversation.with_null_content,
    lambda messages: conversation.with_null_content(conversation.with_string_arguments(messages)),
)


class ChatTemplate:
    """Renders with the source's own rules; where those refuse a conversation, tries what they would take:
    system text folded into the first user turn, consecutive turns of one role merged, tool call ids of nine letters.
    """

    def __init__(
        self,
        source: str | None,
        bos: str = "",
        eos: str = "",
        *,
        budget: Budget | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`source` None is ChatML. `bos` and `eos` are the texts of those tokens. Raises: TemplateError."""
        self.source = CHATML if source is None else source
        self._constants = {"bos_token": bos, "eos_token": eos, "documents": None}
        self._now = now
        self._budget = budget or Budget()
        self._lock = threading.Lock()
        self._is_costly = False
        if len(self.source) > MAX_SOURCE_CHARS:
            raise TemplateError(f"the chat template is longer than {MAX_SOURCE_CHARS} characters")
        try:
            self._template = ChatEnvironment(self._budget, now).from_string(self.source)
        except (JinjaError, RecursionError, SyntaxError, MemoryError) as error:
            raise TemplateError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt. A last message of the assistant is the beginning of its answer, and left open.

        `tools` and further `variables` (such as enable_thinking) go to the template.

        Raises:
            TemplateError: with the template's own words, where it refuses the conversation.
        """
        messages = conversation.normalised(messages)
        variables |= _tool_variables(conversation.normalised_tools(tools or []))
        if add_generation_prompt and len(messages) > 1 and _is_open_answer(messages[-1]):
            return self._render_any(messages[:-1], True, variables) + messages[-1]["content"]
        return self._render_any(messages, add_generation_prompt, variables)

    def _render_any(self, messages: list[Message], add_generation_prompt: bool, variables: dict[str, Any]) -> str:
        first_error: TemplateError | None = None
        for variant in self._variants(messages):
            try:
                return self._render_lenient(variant, add_generation_prompt, variables)
            except LimitError:
                raise
            except TemplateError as error:
                first_error = first_error or error
        raise first_error or TemplateError("the chat template was given no messages")

    def _render_lenient(self, messages: list[Message], add_generation_prompt: bool, variables: dict[str, Any]) -> str:
        """Templates made for tools may iterate over `tools` unasked: None is tried first, then an empty list. They may
        also take it that each property of a tool is described."""
        try:
            return self._render(messages, add_generation_prompt, variables)
        except LimitError:
            raise
        except TemplateError:
            tools = conversation.with_descriptions(variables["tools"] or [])
            if tools and tools == variables["tools"]:
                raise
            return self._render(messages, add_generation_prompt, {**variables, "tools": tools})

    def _variants(self, messages: list[Message]) -> list[list[Message]]:
        """The conversation as it is, then as more demanding templates want it; without repetitions."""
        if any(m.get("tool_calls") or m["role"] == "tool" for m in messages):
            messages = self._call_style(messages)
        if any(m["role"] == "system" for m in messages) and not self.supports_system:
            messages = conversation.with_system_folded(messages)
        merged = conversation.with_turns_merged(messages)
        folded = conversation.with_turns_merged(conversation.with_system_folded(messages))
        short = conversation.with_short_ids(folded)
        single = conversation.with_one_call_each(folded)
        spoken = conversation.with_turns_merged(conversation.without_empty_answers(folded))
        variants = [messages, merged, folded, short, single, spoken]
        return [v for i, v in enumerate(variants) if v not in variants[:i]]

    def _render(self, messages: list[Message], add_generation_prompt: bool, variables: dict[str, Any]) -> str:
        with self._lock:
            self._budget.restart()
            try:
                own = {"messages": messages, "add_generation_prompt": add_generation_prompt}
                values = {"datetime": self._now().strftime("%Y-%m-%d"), **self._constants, **variables, **own}
                return self._template.render(copy.deepcopy(values))  # a template may append to the lists it is handed
            except TemplateError:
                raise
            except RecursionError as error:
                raise TemplateError("the chat template recurses too deeply") from error
            except Exception as error:  # template code may raise any of Python's own exceptions
                raise TemplateError(str(error) or type(error).__name__) from error

    def _probe(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> str | None:
        """The rendered text, or None where the template refuses, or has exceeded its limits in a probe before."""
        if self._is_costly:
            return None
        try:
            return self._render_lenient(messages, True, _tool_variables(tools or []))
        except TemplateError as error:
            self._is_costly = isinstance(error, LimitError)
            return None

    @cached_property
    def supports_system(self) -> bool:
        """A system message is accepted, and its text is not dropped."""
        text = self._probe([{"role": "system", "content": "probe_system"}, USER])
        return text is not None and "probe_system" in text

    @cached_property
    def supports_tools(self) -> bool:
        """The names of tools appear in the prompt."""
        text = self._probe([USER], [PROBE_TOOL])
        if text is None:
            text = self._probe([{"role": "system", "content": "s"}, USER], [PROBE_TOOL])
        return "probe_tool" in text if text is not None else "tools" in self.source

    @cached_property
    def keeps_tool_turns(self) -> bool:
        """Calls of tools and their results both reach the prompt, as far as the source tells."""
        has_calls = any(mark in self.source for mark in CALL_MARKS)
        return has_calls and any(mark in self.source for mark in RESULT_MARKS)

    @cached_property
    def supports_thinking(self) -> bool:
        """The source deals with the model's thinking."""
        has_tags = tags_named_in(self.source) is not None
        has_split = "split('</think>')" in self.source and "reasoning_content" not in self.source
        has_switch = "enable_thinking" in self.source or "reasoning_effort" in self.source
        return has_tags or has_split or has_switch

    @cached_property
    def _call_style(self) -> Adaption:
        """The first way to write tool calls that the template prints whole, not as Python and not encoded twice.

        A template that knows no tools keeps its way of dropping calls, unless it refuses them.
        """
        write = writer_for(self.source)
        texts: tuple[Adaption, ...] = (
            lambda messages: conversation.with_calls_as_text(messages, write),
            lambda messages: conversation.with_results_as_user(conversation.with_calls_as_text(messages, write)),
        )
        for style in (*CALL_STYLES, *texts) if self.supports_tools else CALL_STYLES:
            text = self._probe(style(PROBE_TURNS), [PROBE_TOOL]) or ""
            is_whole = "probe_value" in text and "probe_result" in text
            if is_whole and "{'k'" not in text and '\\"k' not in text:
                return style
        return CALL_STYLES[0] if self._probe(PROBE_TURNS) is not None else texts[-1]


def _tool_variables(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """`functions` is firefunction's name for the tools as JSON text."""
    return {"tools": tools or None, "functions": json.dumps(tools, indent=4) if tools else ""}


def _is_open_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls")

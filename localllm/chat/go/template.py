"""A Go template applied to conversations as Ollama does; it knows nothing of tokens or requests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any

from localllm.chat.budget import Budget
from localllm.chat.conversation import BETWEEN_TURNS, Message, normalised, with_turns_merged
from localllm.chat.go import nodes, tags
from localllm.chat.go.cutting import cut_after
from localllm.chat.go.execution import Execution
from localllm.chat.go.functions import functions_at
from localllm.chat.go.parser import Trees, parse
from localllm.chat.go.records import message_records, tool_records
from localllm.errors import TemplateError

MAX_SOURCE_CHARS = 1024 * 1024
ANSWER = "Response"
ANSWER_ACTION = "{{ .Response }}"
DEFAULT_LEVEL = "medium"
# Any of these in a template's text shows that it prints the results of tools.
RESULT_MARKS = ('eq .Role "tool"', "tool_response", "TOOL_RESULTS")


class GoTemplate:
    """Renders a conversation turn by turn, or at once where the source uses `.Messages`."""

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now) -> None:
        """Raises: TemplateError, with the line of the fault."""
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(f"the chat template is longer than {MAX_SOURCE_CHARS} characters")
        self.source = source
        self._functions = functions_at(now)
        self._trees = self._parsed(source)
        if not {"messages", "response"} & self._names:
            self._trees = self._parsed(source + ANSWER_ACTION)

    def _parsed(self, source: str) -> Trees:
        try:
            return parse(source, self._functions)
        except RecursionError as error:
            raise TemplateError("template: nested too deeply") from error

    @property
    def _names(self) -> set[str]:
        """The fields that the template reads, in lower case."""
        found = (name for tree in self._trees.values() for node in nodes.walk(tree) for name in nodes.names_of(node))
        return {name.lower() for name in found}

    @cached_property
    def uses_messages(self) -> bool:
        return "messages" in self._names

    @cached_property
    def supports_insert(self) -> bool:
        """It says where the text after a hole goes."""
        return "suffix" in self._names

    @cached_property
    def supports_tools(self) -> bool:
        """It lists tools."""
        return "tools" in self._names

    @property
    def supports_thinking(self) -> bool:
        """It shows thinking between tags."""
        return self.thinking_tags is not None

    @cached_property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The texts around `.Thinking` in the messages, such as ("<think>", "</think>"); None without both."""
        return tags.thinking_tags(self._trees)

    @cached_property
    def tool_tag(self) -> str | None:
        """The text with which tool calls begin, such as "<tool_call>"; "{" where they are bare JSON, None where the
        template shows no calls."""
        return tags.tool_tag(self._trees)

    @cached_property
    def keeps_tool_turns(self) -> bool:
        """Tools, their calls and their results all reach the prompt."""
        has_results = any(mark in self.source for mark in RESULT_MARKS)
        return has_results and {"tools", "toolcalls"} <= self._names

    def render(self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **variables: Any) -> str:
        """The prompt; a last message of the assistant is the beginning of its answer.

        Of `variables`, `enable_thinking` (a bool) and `reasoning_effort` (a level) become Think, ThinkLevel and
        IsThinkSet.

        Raises:
            TemplateError: the template cannot be executed over these messages (LimitError: it costs too much).
        """
        merged = with_turns_merged(normalised(messages))
        thinking = _thinking(variables)
        budget = Budget()
        if not self.uses_messages:
            return self._render_turns(merged, thinking, budget)
        values = {
            "System": BETWEEN_TURNS.join(m["content"] for m in normalised(messages) if m["role"] == "system"),
            "Messages": message_records(merged),
            "Tools": tool_records(tools or []),
            ANSWER: "",
        }
        return self._execute(self._trees, values | thinking, budget)

    def render_insert(self, prompt: str, suffix: str, **variables: Any) -> str:
        """The prompt for text between `prompt` and `suffix`. Raises: TemplateError."""
        values = {"Prompt": prompt, "Suffix": suffix, ANSWER: "", **_thinking(variables)}
        return self._execute(self._trees, values, Budget(), stops_at=ANSWER)

    def _render_turns(self, messages: list[Message], thinking: dict[str, Any], budget: Budget) -> str:
        """The old form: a turn ends where a user or system message follows on an answer, and the system text is
        printed once. The last turn ends where its answer is to begin."""
        text, turn = "", {"System": "", "Prompt": "", ANSWER: ""}
        fields = {"system": "System", "user": "Prompt", "assistant": ANSWER}
        for message in messages:
            role = message["role"]
            if (turn[ANSWER] and role in ("system", "user")) or (turn["Prompt"] and role == "system"):
                text += self._execute(self._trees, turn | thinking, budget)
                turn = dict.fromkeys(turn, "")
            if role in fields:
                turn[fields[role]] = message["content"]
        last = {**self._trees, "": cut_after(self._trees[""], ANSWER)}
        return text + self._execute(last, turn | thinking, budget)

    def _execute(self, trees: Trees, values: dict[str, Any], budget: Budget, stops_at: str | None = None) -> str:
        return Execution(self.source, trees, self._functions, budget, stops_at).run(values)


def _thinking(variables: dict[str, Any]) -> dict[str, Any]:
    think = bool(variables.get("enable_thinking"))
    level = str(variables.get("reasoning_effort") or DEFAULT_LEVEL) if think else ""
    return {"Think": think, "ThinkLevel": level, "IsThinkSet": "enable_thinking" in variables}

"""How a model writes calls, found out from its template."""

from __future__ import annotations

from typing import Any

import pytest

from localllm.chat import ChatTemplate, GoTemplate, Text, ToolCall
from localllm.chat.parts import Part, joined
from localllm.chat.tools import CallReader, Tools, begun_by, syntaxes_of
from localllm.chat.tools.detect import written_call
from localllm.chat.tools.families import BARE, HERMES, LLAMA, family_of
from localllm.chat.tools.json_calls import JsonCalls

TOOLS = Tools([{"type": "function", "function": {"name": "look", "parameters": {"properties": {}}}}])
CALL = ToolCall("look", {"city": "Rome"})
LIST = "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
TURNS = (
    LIST + "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% set f = c.function %}CALL{% endfor %}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


def template(call: str) -> ChatTemplate:
    return ChatTemplate(TURNS.replace("CALL", call))


def read(syntaxes: Any, text: str) -> list[Part]:
    reader = CallReader(syntaxes, TOOLS)
    return joined([part for piece in [*text] for part in reader.feed(piece)] + reader.flush())


WHOLE = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
OWN = [
    (f"<|call:new|>{WHOLE}<|call:over|>", '<|call:new|>{"name": "look", "arguments": {"city": "Rome"}}<|call:over|>'),
    (f"\n<<USE>>[{WHOLE}]<</USE>>", '<<USE>>[{"name": "look", "arguments": {"city": "Rome"}}]<</USE>>'),
    (
        "@run {{ f.name }} with {{ f.arguments | tojson }} @done",
        '@run look with {"city": "Rome"} @done',
    ),
    ('<do>{"{{ f.name }}": {{ f.arguments | tojson }}}</do>', '<do>{"look": {"city": "Rome"}}</do>'),
]


@pytest.mark.parametrize(("written", "answer"), OWN)
def test_tags_nobody_has_seen_before(written: str, answer: str) -> None:
    syntaxes = syntaxes_of(template(written))
    assert read(syntaxes, answer) == [CALL]
    assert read(syntaxes, f"Well: {answer}and so on") == [Text("Well:"), CALL, Text("and so on")]
    assert read(syntaxes, answer.replace("look", "seek")) == [Text(answer.replace("look", "seek"))]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (f"<tool_call>\n{WHOLE}\n</tool_call>", (HERMES,)),
        (WHOLE, (BARE,)),
        (WHOLE.replace('arguments"', 'parameters"'), LLAMA),
    ],
)
def test_what_is_written_counts(written: str, expected: Any) -> None:
    assert syntaxes_of(template(written)) == expected


def test_a_template_that_writes_no_calls_may_name_the_tags() -> None:
    named = ChatTemplate(LIST + "{# answer with <|tool_call|> #}{% for m in messages %}{{ m.content }}{% endfor %}")
    assert syntaxes_of(named)[0].openers[0] == "<|tool_call|>"
    openers = {opener for syntax in syntaxes_of(named) for opener in syntax.openers}
    assert set(HERMES.openers) <= openers  # the way in which such a template's conversations have calls
    silent = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert syntaxes_of(silent) == (HERMES,)


def family(mark: str) -> Any:
    found = family_of(mark)
    assert found is not None
    return found.syntaxes


class GoLike:
    """A Go template that says by what its tool calls begin."""

    def __init__(self, tool_tag: str | None, source: str = "") -> None:
        self.tool_tag, self.source = tool_tag, source

    def render(self, messages: Any, tools: Any = None, **variables: Any) -> str:
        return "".join(message["content"] for message in messages)


def test_the_tag_of_a_go_template() -> None:
    assert syntaxes_of(GoLike("{"))[0] == BARE
    assert syntaxes_of(GoLike("[TOOL_CALLS]"))[0].openers == ("[TOOL_CALLS]",)
    assert read(syntaxes_of(GoLike("<calls>")), '<calls> {"name": "look", "arguments": {"city": "Rome"}}') == [CALL]
    assert syntaxes_of(GoLike(None)) == (HERMES,)


GO = (
    "{{ range $i, $m := .Messages }}<turn>{{ .Role }}\n{{ .Content }}"
    "{{ if .ToolCalls }}WRITTEN{{ end }}<end>\n{{ end }}{{ if .Tools }}{{ .Tools }}{{ end }}<turn>assistant\n"
)
GO_CALL = '{"name": "{{ .Function.Name }}", "KEY": {{ .Function.Arguments }}}'


@pytest.mark.parametrize(
    ("calls", "key", "expected"),
    [
        ("<tool_call>\n{{ range .ToolCalls }}ONE{{ end }}\n</tool_call>", "arguments", (HERMES,)),
        ("{{ range .ToolCalls }}\nONE{{ end }}", "parameters", LLAMA),
        ("[TOOL_CALLS] [{{ range .ToolCalls }}ONE{{ end }}]", "arguments", family("[TOOL_CALLS]")),
        ("<run>{{ range .ToolCalls }}ONE{{ end }}</run>", "arguments", (JsonCalls(("<run>",), ("</run>",)),)),
    ],
)
def test_go_templates(calls: str, key: str, expected: Any) -> None:
    written = calls.replace("ONE", GO_CALL.replace("KEY", key))
    assert syntaxes_of(GoTemplate(GO.replace("WRITTEN", written))) == expected


def test_a_prompt_may_end_with_the_beginning_of_a_call() -> None:
    assert begun_by("<|start_header_id|>assistant<|end_header_id|>\n\n>>>") == ">>>"
    assert begun_by("<turn>assistant\n") == ""


def test_what_a_template_writes() -> None:
    assert written_call(template("<c>{{ f.name }}</c>{{ f.arguments | tojson }}")) == (
        '<c>probe_call</c>{"probe_key": "probe_value"}<end>\n'
    )
    assert written_call(ChatTemplate("{{ raise_exception('no') }}")) == ""


def test_marks_of_a_family_are_all_needed() -> None:
    assert family_of("<tool_call>") is not family_of("<tool_call> <arg_key>")
    assert family_of("plain text") is None

"""Go templates on conversations: turn by turn, all at once, tools, thinking, and what their text tells of answers."""

from __future__ import annotations

from typing import Any

import pytest

from localllm.chat import GoTemplate
from localllm.chat.budget import LimitError
from localllm.errors import TemplateError

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
ASSISTANT = {"role": "assistant", "content": "a"}

LEGACY = """{{ if .System }}<sys>{{ .System }}
{{ end }}{{ if .Prompt }}<user>{{ .Prompt }}
{{ end }}<bot>{{ .Response }}<end>"""


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (LEGACY, [USER], "<user>u\n<bot>"),
        (LEGACY, [SYSTEM, USER], "<sys>s\n<user>u\n<bot>"),
        (LEGACY, [SYSTEM, USER, ASSISTANT, USER], "<sys>s\n<user>u\n<bot>a<end><user>u\n<bot>"),
        (LEGACY, [USER, ASSISTANT], "<user>u\n<bot>a"),
        ("{{ .Prompt }}", [USER, ASSISTANT, USER], "uau"),
        ("a {{- .Prompt -}} b{{ .Response }}", [USER], "aub"),
        ("{{- /* note */ -}} x{{ .Prompt }}{{ .Response }}", [USER], "xu"),
        (
            "{{ range .Messages }}<|{{ .Role }}|>{{ .Content }}<|end|>{{ end }}<|assistant|>",
            [SYSTEM, USER],
            "<|system|>s<|end|><|user|>u<|end|><|assistant|>",
        ),
        (
            '{{ if .System }}{{ .System }};{{ end }}{{ range .Messages }}{{ if eq .Role "user" }}U{{ .Content }}'
            '{{ else if eq .Role "assistant" }}A{{ .Content }}{{ else }}-{{ end }}{{ end }}',
            [SYSTEM, USER, ASSISTANT, USER],
            "s;-UuAaUu",
        ),
        (
            '{{ range .Messages }}{{ if and (ne .Role "system") $.System }}{{ .Content }}\\n{{ "\\n" }}{{ end }}'
            "{{ end }}",
            [SYSTEM, USER],
            "u\\n\n",
        ),
        (
            "{{ range .Messages }}{{ if not .Content }}empty{{ end }}{{ end }}",
            [{"role": "user", "content": ""}],
            "empty",
        ),
    ],
)
def test_rendering(source: str, messages: list[dict[str, Any]], expected: str) -> None:
    assert GoTemplate(source).render(messages) == expected


def test_insert() -> None:
    template = GoTemplate("<pre>{{ .Prompt }}<suf>{{ .Suffix }}<mid>{{ .Response }}<end>")
    assert template.supports_insert
    assert template.render_insert("a", "b") == "<pre>a<suf>b<mid>"
    either = GoTemplate("{{ if .Suffix }}{{ .Prompt }}_{{ .Suffix }}{{ else }}{{ .Prompt }}!{{ .Response }}{{ end }}")
    assert either.render_insert("a", "b") == "a_b"
    assert either.render([USER]) == "u!"


def test_a_fault_is_told_with_its_line() -> None:
    with pytest.raises(TemplateError, match=r"^template: :2: unexpected EOF$"):
        GoTemplate("{{ if .System }}\nx")


def test_a_source_too_long_is_refused() -> None:
    with pytest.raises(TemplateError, match="longer than"):
        GoTemplate("x" * 2_000_000)


def test_loops_in_loops_end() -> None:
    with pytest.raises(LimitError, match="the chat template"):
        GoTemplate("{{ range $.Messages }}" * 30 + "x" + "{{ end }}" * 30).render([SYSTEM, USER, ASSISTANT])


CALL = {"function": {"name": "f", "arguments": {"b": 1, "a": "<x>"}}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "r", "tool_name": "f"}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "a & b",
        "parameters": {
            "type": "object",
            "properties": {
                "z": {"type": "string", "description": "d", "format": "date"},
                "a": {"type": ["integer", "null"], "enum": [1, 2]},
                "o": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}]},
            },
            "required": ["z"],
        },
    },
}
PARAMETERS = (
    '{"type":"object","required":["z"],"properties":{"a":{"type":["integer","null"],"enum":[1,2]},'
    '"o":{"anyOf":[{"type":"array","items":{"type":"string"}},{"type":"object"}]},'
    '"z":{"type":"string","description":"d"}}}'
)
FUNCTION = f'{{"name":"f","description":"a \\u0026 b","parameters":{PARAMETERS}}}'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ .Tools }}", f'[{{"type":"function","function":{FUNCTION}}}]'),
        ("{{ json .Tools }}", f'[{{"type":"function","function":{FUNCTION}}}]'),
        ("{{ range .Tools }}{{ . }}{{ end }}", f'{{"type":"function","function":{FUNCTION}}}'),
        ("{{ range .Tools }}{{ .Function }}{{ end }}", FUNCTION),
        ("{{ range .Tools }}{{ .Function.Parameters }}{{ end }}", PARAMETERS),
        (
            "{{ range .Tools }}{{ range $name, $p := .Function.Parameters.Properties }}{{ $name }}:{{ $p.Type }}"
            "={{ toTypeScriptType $p }}={{ $p | toTypeScriptType }};{{ end }}{{ end }}",
            "a:[integer null]=number | null=number | null;o:=any[] | Record<string, any>=any[] | Record<string, any>;"
            "z:string=string=string;",
        ),
        (
            "{{ range .Tools }}{{ .Type }}{{ len .Function.Parameters.Required }}{{ .Items }}{{ end }}",
            "function1<no value>",
        ),
        (
            "{{ range .Messages }}{{ .Role }}:{{ .Content }}{{ range .ToolCalls }}{{ .Function.Name }}"
            "{{ .Function.Arguments }}{{ .Function.Index }}{{ end }}{{ .ToolName }};{{ end }}",
            'user:u;assistant:f{"a":"\\u003cx\\u003e","b":1}0;tool:rf;',
        ),
        (
            "{{ range .Messages }}{{ range .ToolCalls }}{{ range $k, $v := .Function.Arguments }}{{ $k }}={{ $v }},"
            "{{ end }}{{ end }}{{ end }}",
            "a=<x>,b=1,",
        ),
        ("{{ range .Messages }}{{ if .ToolCalls }}{{ (index .ToolCalls 0).Function.Name }}{{ end }}{{ end }}", "f"),
        ("{{ (index .Messages 0).Role }}{{ len (slice .Messages 1) }}", "user2"),
        ("{{ .System }}{{ .Prompt }}{{ .Response }}{{ range .Messages }}{{ end }}", "<no value>"),
    ],
)
def test_tools_and_calls(source: str, expected: str) -> None:
    assert GoTemplate("{{ if .Messages }}{{ end }}" + source).render([USER, CALLING, RESULT], [TOOL]) == expected


def test_lists_that_nobody_filled_are_null() -> None:
    source = "{{ .Tools }}{{ json .Tools }}{{ range .Messages }}{{ json .ToolCalls }}{{ .ToolCalls }}{{ end }}"
    assert GoTemplate(source).render([USER]) == "nullnullnull[]"


def test_turns_of_one_role_are_merged_but_results_of_tools_are_not() -> None:
    source = "{{ .System }}!{{ range .Messages }}{{ .Role }}:{{ .Content }}|{{ end }}"
    messages = [SYSTEM, SYSTEM, USER, USER, CALLING, RESULT, RESULT]
    assert GoTemplate(source).render(messages) == "s\n\ns!system:s\n\ns|user:u\n\nu|assistant:|tool:r|tool:r|"


def test_calls_survive_the_merging() -> None:
    source = "{{ range .Messages }}{{ .Content }}{{ range .ToolCalls }}{{ .Function.Name }}{{ end }}{{ end }}"
    assert GoTemplate(source).render([USER, ASSISTANT, CALLING]) == "uaf"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "false||false"),
        ({"enable_thinking": True}, "true|medium|true"),
        ({"enable_thinking": False}, "false||true"),
        ({"enable_thinking": True, "reasoning_effort": "high"}, "true|high|true"),
    ],
)
def test_thinking_variables(variables: dict[str, Any], expected: str) -> None:
    plain = "{{ .Think }}|{{ .ThinkLevel }}|{{ .IsThinkSet }}"
    assert GoTemplate("{{ range .Messages }}{{ end }}" + plain).render([USER], **variables) == expected
    assert GoTemplate(plain).render([USER], **variables) == expected


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        # cut inside a branch: nothing after it, wherever it stands, is left
        ("{{ .Prompt }}{{ if .Response }}<{{ .Response }}>{{ end }}!", [USER], "u"),
        ("{{ .Prompt }}{{ if .Response }}<{{ .Response }}>{{ end }}!", [USER, ASSISTANT, USER], "u<a>!u"),
        ("{{ .Prompt }}{{ if .Response }}yes{{ else }}no{{ .Response }}x{{ end }}", [USER], "uno"),
        # a system text is printed with the turn it stands before
        ("[{{ .System }}]{{ .Prompt }}", [SYSTEM, USER, ASSISTANT, SYSTEM, USER], "[s]ua[s]u"),
        ("[{{ .System }}]{{ .Prompt }}", [SYSTEM, USER, ASSISTANT, USER], "[s]ua[]u"),
        ("{{ .Prompt }}{{ .Response }}", [USER, RESULT], "u"),
        ("{{ .Prompt }}{{ .Response }}", [], ""),
    ],
)
def test_the_old_form(source: str, messages: list[dict[str, Any]], expected: str) -> None:
    assert GoTemplate(source).render(messages) == expected


THINK = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ range .Messages }}{{ if .Thinking }}<think>\n{{ .Thinking }}\n</think>\n\n{{ end }}{{ end }}", THINK),
        ("{{ range $i, $m := .Messages }}a\n<think>{{ $m.Thinking }}</think>\nb{{ end }}", THINK),
        ("{{ range .Messages }}<think>{{ if .Thinking }}{{ .Thinking }}{{ end }}</think>{{ end }}", THINK),
        ("{{ range .Messages }}{{ .Thinking }}{{ end }}", None),
        ("{{ range .Messages }}{{ if .Thinking }}<think>{{ end }}</think>{{ end }}", None),
        ("<think>{{ .Thinking }}</think>{{ range .Messages }}{{ end }}", None),
    ],
)
def test_tags_of_thinking(source: str, expected: tuple[str, str] | None) -> None:
    template = GoTemplate(source)
    assert (template.thinking_tags, template.supports_thinking) == (expected, expected is not None)


@pytest.mark.parametrize(
    ("source", "tag"),
    [
        ('{{ if .ToolCalls }}\n<tool_call>\n{{ range .ToolCalls }}{"name": {{ end }}{{ end }}', "<tool_call>"),
        ('{{ if .Content }}{{ else if .ToolCalls }}{{ range .ToolCalls }}<call>{"a"{{ end }}{{ end }}', "<call>"),
        ('{{ if .ToolCalls }}[TOOL_CALLS] [{{ range .ToolCalls }}{"name"{{ end }}]{{ end }}', "[TOOL_CALLS] ["),
        ('{{ if .ToolCalls }}{{ range .ToolCalls }}{"name"{{ end }}{{ end }}', "{"),
        ("{{ if .ToolCalls }}{{ .ToolCalls }}x{{ end }}", "{"),
        ("{{ .Tools }}", None),
    ],
)
def test_tag_of_tool_calls(source: str, tag: str | None) -> None:
    assert GoTemplate("{{ range .Messages }}" + source + "{{ end }}").tool_tag == tag


def test_what_it_supports_is_read_from_its_fields() -> None:
    template = GoTemplate('{{ if .Suffix }}{{ end }}{{ $.Tools }}{{ eq .Role "tool" }}{{ .ToolCalls }}')
    assert (template.supports_insert, template.supports_tools, template.keeps_tool_turns) == (True, True, True)
    template = GoTemplate("Tools {{ .Prompt }}")
    assert (template.supports_insert, template.supports_tools, template.keeps_tool_turns) == (False, False, False)

"""The plain forms of Go templates."""

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


@pytest.mark.parametrize(
    "source",
    [
        "{{ if .System }}x",
        "{{ end }}",
        "{{ range $i, $m := .Messages }}{{ end }}",
        "{{ .Messages | json }}",
        "{{ json .Tools }}",
        "{{ .Tools }}",
        "{{ if (eq .Role }}x{{ end }}",
        '{{ template "x" }}',
        "{{ if }}x{{ end }}",
    ],
)
def test_what_is_not_supported_is_refused_when_compiled(source: str) -> None:
    with pytest.raises(TemplateError):
        GoTemplate(source)


def nested_ranges(depth: int, body: str) -> str:
    return "{{ range .Messages }}" * depth + body + "{{ end }}" * depth


@pytest.mark.parametrize("source", [nested_ranges(30, "x"), nested_ranges(12, "x" * 100_000), nested_ranges(30, "")])
def test_loops_in_loops_end(source: str) -> None:
    with pytest.raises(LimitError, match="the chat template"):
        GoTemplate(source).render([SYSTEM, USER, ASSISTANT])


@pytest.mark.parametrize(
    "source",
    [
        "{{ if " + "(" * 5000 + ".System" + ")" * 5000 + " }}x{{ end }}",
        "{{ if .System }}" * 5000 + "x" + "{{ end }}" * 5000,
        "{{ if .System }}" + "x{{ else if .Prompt }}" * 5000 + "{{ end }}",
    ],
)
def test_deep_nesting_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="nested too deeply"):
        GoTemplate(source)

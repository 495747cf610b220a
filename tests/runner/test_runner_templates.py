"""Which of a model's templates is in use, and what shows of it."""

from __future__ import annotations

from typing import Any

import pytest

from localllm.errors import TemplateError
from localllm.runner.templates import Templates

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
# Tools listed, but neither calls nor results; both; with thinking as well.
LISTS = "{% for t in tools %}{{ t.function.name }}{% endfor %}" + PLAIN
TURNS = LISTS + "{% for m in messages if m.tool_calls %}{% endfor %}{# <tool_response> #}"
THINKS = TURNS + "{# <think> </think> #}"

GO_PLAIN = "{{ range .Messages }}{{ .Content }}{{ end }}"
GO_LISTS = GO_PLAIN + "{{ .Tools }}"
GO_TURNS = GO_LISTS + '{{ range .Messages }}{{ .ToolCalls }}{{ eq .Role "tool" }}{{ end }}'
GO_INSERT = GO_TURNS + "{{ .Suffix }}"
GO_HARMONY = GO_PLAIN + "<|start|><|end|>"


def made(jinja: str | None, go: str | None, **options: Any) -> Templates:
    architecture = options.pop("architecture", "llama")
    metadata = {"general.architecture": architecture, **({"tokenizer.chat_template": jinja} if jinja else {})}
    return Templates(metadata, go, "", "", **options)


@pytest.mark.parametrize(
    ("jinja", "go", "uses_go"),
    [
        (None, GO_PLAIN, True),
        (PLAIN, None, False),
        (None, None, False),
        (PLAIN, GO_PLAIN, True),
        (PLAIN, GO_TURNS, True),
        (LISTS, GO_PLAIN, False),  # it can do more
        (LISTS, GO_LISTS, True),  # both alike, neither keeps the turns
        (TURNS, GO_LISTS, False),  # both list tools, only Jinja keeps their turns
        (TURNS, GO_TURNS, True),
        (THINKS, GO_TURNS, False),
        (LISTS + "{# <think> </think> #}", GO_TURNS, True),  # more, but it would lose the turns
        (THINKS, GO_INSERT, True),  # as many, but not the same
        ("{% if %}", GO_PLAIN, True),
        (PLAIN, "{{ if }}", False),
    ],
)
def test_the_choice(jinja: str | None, go: str | None, uses_go: bool) -> None:
    templates = made(jinja, go)
    assert templates.uses_go == uses_go
    assert templates.source == ((go if uses_go else jinja) or "")


def test_the_choice_can_be_settled() -> None:
    assert made(THINKS, GO_PLAIN, prefers_go=True).uses_go
    assert not made(PLAIN, GO_TURNS, prefers_go=False).uses_go
    assert made(None, GO_PLAIN, prefers_go=False).uses_go
    assert not made(PLAIN, None, prefers_go=True).uses_go


def test_channels_of_gpt_oss_are_written_by_its_go_template() -> None:
    assert made(THINKS, GO_HARMONY, architecture="gptoss").uses_go
    assert not made(THINKS, GO_HARMONY).uses_go
    assert not made(THINKS, GO_PLAIN, architecture="gptoss").uses_go


def test_capabilities_are_those_of_the_template_in_use() -> None:
    assert made(THINKS, GO_PLAIN).capabilities == ["tools", "thinking"]
    assert made(THINKS, GO_PLAIN, prefers_go=True).capabilities == []
    thinking = "{{ range .Messages }}<think>{{ .Thinking }}</think>{{ end }}{{ .Tools }}"
    assert made(PLAIN, thinking).capabilities == ["tools", "thinking"]
    assert made("{% if %}", None).capabilities == []


def test_a_broken_template_without_another_is_told_when_it_is_needed() -> None:
    for templates in (made("{% if %}", "{{ if }}"), made(None, "{{ if }}"), made("{% if %}", None)):
        with pytest.raises(TemplateError):
            templates.choose(None, has_tools=False)

"""The language of Go templates: outputs and errors equal those that Go's own text/template gave (see record_go.go)."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.chat.budget import Budget, LimitError
from localllm.chat.go.execution import Execution
from localllm.chat.go.functions import functions_at
from localllm.chat.go.parser import parse
from localllm.errors import TemplateError

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "templates" / "go_cases.json").read_text("utf-8"))
FUNCTIONS = functions_at(lambda: datetime(2024, 3, 1, 12))


def execute(source: str, data: Any, budget: Budget | None = None) -> str:
    return Execution(source, parse(source, FUNCTIONS), FUNCTIONS, budget or Budget()).run(data)


@pytest.mark.parametrize(("source", "output", "error"), RECORDED["cases"])
def test_output_and_error_are_gos(source: str, output: str, error: str) -> None:
    if error:
        with pytest.raises(TemplateError) as raised:
            execute(source, RECORDED["data"])
        assert str(raised.value) == error
    else:
        assert execute(source, RECORDED["data"]) == output


def test_dates() -> None:
    source = '{{ currentDate }} {{ currentDate "2006" }} {{ yesterdayDate }}'
    assert execute(source, {}) == "2024-03-01 2024-03-01 2024-02-29"
    with pytest.raises(TemplateError, match="expected string; found 3"):
        execute("{{ currentDate 3 }}", {})


PIECES = ["{{", "}}", "{{- ", " -}}", "(", ")", "|", "if ", "else ", "end", "range ", "with ", ".l", ".s", "$x", ":="]
PIECES += ["=", '"a"', "`b", "'c'", "1", "-", ".", "\n", "/*", "*/", "define ", "template ", "block ", "index ", ","]


@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_whatever_the_source_there_is_an_output_or_a_template_error(pieces: list[str]) -> None:
    try:
        assert isinstance(execute("".join(pieces), RECORDED["data"]), str)
    except TemplateError as error:
        assert str(error).startswith("template: ")


@given(st.text(), st.text())
def test_text_and_values_come_through_unchanged(before: str, value: str) -> None:
    before = before.replace("{{", "")
    expected = before.rstrip("{") + value
    assert execute(before.rstrip("{") + "{{ .v }}", {"v": value}) == expected


HOSTILE = {
    "loops in loops": "{{ range .l }}" * 30 + "x" + "{{ end }}" * 30,
    "loops without text": "{{ range .l }}" * 30 + "{{ end }}" * 30,
    "long text in loops": "{{ range .l }}" * 14 + "x" * 100_000 + "{{ end }}" * 14,
    "long range": "{{ range 1000000000000 }}{{ end }}",
    "doubling": '{{ $s := "x" }}{{ range 99 }}{{ $s = print $s $s }}{{ end }}',
    "templates that call themselves twice": '{{ define "a" }}{{ range 3 }}{{ template "a" }}{{ end }}{{ end }}'
    '{{ template "a" }}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end(name: str) -> None:
    with pytest.raises(TemplateError):
        execute(HOSTILE[name], {"l": ["a", "b", "c"]}, Budget(max_chars=20_000_000, max_seconds=2.0))


def test_one_call_that_would_print_gigabytes_is_refused() -> None:
    with pytest.raises(TemplateError, match="more than"):
        execute('{{ printf "' + "%1000000d" * 1000 + '" ' + "1 " * 1000 + "}}", {})
    with pytest.raises(TemplateError, match="more than"):
        execute("{{ print" + " .s" * 10_000 + " }}", {"s": "x" * 10_000})


def test_loops_cost_steps() -> None:
    with pytest.raises(LimitError, match="loop rounds"):
        execute("{{ range 11 }}{{ end }}", {}, Budget(max_steps=10))


@pytest.mark.parametrize(
    "source",
    [
        "{{ if " + "(" * 5000 + ".s" + ")" * 5000 + " }}x{{ end }}",
        "{{ if .s }}" * 5000 + "x" + "{{ end }}" * 5000,
        "{{ if .s }}" + "x{{ else if .t }}" * 5000 + "{{ end }}",
    ],
)
def test_deep_nesting_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="nested too deeply"):
        parse(source, FUNCTIONS)


def test_as_deep_as_allowed_is_executed() -> None:
    assert execute("{{ if true }}" * 99 + "x" + "{{ end }}" * 99, {}) == "x"
    assert execute("{{ " + "(" * 98 + "1" + ")" * 98 + " }}", {}) == "1"


def test_templates_that_call_themselves_for_ever_are_refused() -> None:
    with pytest.raises(TemplateError, match="exceeded maximum template depth"):
        execute('{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}', {})

"""Templates with the real daemon: what tojson prints, refusals, and tool calls in answers, streamed and not.

Part of the default run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

USER = {"role": "user", "content": "u"}
SYSTEM = {"role": "system", "content": "s"}
ASSISTANT = {"role": "assistant", "content": "a"}

TOJSON = (
    "{{ tools[0] | tojson }}|{{ tools[0] | tojson(ensure_ascii=False) }}|"
    "{{ tools[0].function.parameters.properties | tojson(indent=2) }}|{{ messages[-1].content }}<|assistant|>"
)
TOOL_TEXT = (
    '{"type": "function", "function": {"name": "cmp_temp", "description": "true if t > 10 & t < 50 (user\'s café)", '
    '"parameters": {"type": "object", "properties": {"zone": {"type": "string"}, "at": {"type": "integer"}}, '
    '"required": ["zone"]}}}'
)
STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}<|assistant|>"
)
WITH_CALLS = (
    "{{ .Tools }}{{ range .Messages }}<|{{ .Role }}|>{{ .Content }}{{ if .ToolCalls }}<tool_call>{{ range .ToolCalls }}"
    '{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}{{ end }}</tool_call>{{ end }}<|end|>'
    "{{ end }}<|assistant|>"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "object"}}},
    },
}


@pytest.fixture(scope="module")
def scripted(server: Any, tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """scripted(name, pieces, jinja): a model of that template which answers with the pieces."""
    folder = tmp_path_factory.mktemp("scripted")

    def make(name: str, pieces: list[str], jinja: str) -> str:
        path: Path = folder / f"{name}.gguf"
        tiny_models.script_model(path, pieces, tmpl=jinja)
        return str(server.add(path))

    return make


def test_tojson_prints_what_the_client_sent_in_its_order(server: Any, scripted: Callable[..., str]) -> None:
    body = {"model": scripted("tojson", ["ok"], TOJSON), "messages": [USER], "tools": [json.loads(TOOL_TEXT)]}
    first, second, third, _ = server.post("/api/render", body)["prompt"].split("|", 3)
    assert first == second == TOOL_TEXT
    assert third == '{\n  "zone": {\n    "type": "string"\n  },\n  "at": {\n    "type": "integer"\n  }\n}'


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_by_the_template(server: Any, scripted: Callable[..., str], path: str, stream: bool) -> None:
    name = scripted("strict", ["ok"], STRICT)

    def answer(messages: list[dict[str, Any]]) -> Any:
        return server.http.post(path, json={"model": name, "messages": messages, "stream": stream})

    for messages in ([USER], [SYSTEM, USER], [USER, {**USER, "content": "v"}]):  # folded, merged
        assert answer(messages).status_code == 200
    refused = answer([ASSISTANT, USER])
    assert refused.status_code == 400 and "roles must alternate" in refused.text
    empty = answer([])
    if path == "/api/chat":
        assert (empty.status_code, empty.json()["done_reason"]) == (200, "load")
    else:
        assert empty.status_code == 400


ANSWERS: list[tuple[list[str], dict[str, Any], str, list[dict[str, Any]]]] = [
    (['{"name":', '"Alice",', '"age":3}'], {}, '{"name":"Alice","age":3}', []),
    (
        ["Let me look. <tool_", 'call>{"name":"get_weather",', '"arguments":{"q":"a } b { \\" ]"}}', "</tool_call>"],
        {},
        "Let me look.",
        [{"q": 'a } b { " ]'}],
    ),
    (
        [
            '<tool_call>{"name":"get_weather","arguments":{"q":"x"}}</tool_call>',
            '<tool_call>{"name":"get_weather","arguments":{"q":"y","n":{"k":[{}]}}}</tool_call> ',
        ],
        {},
        "",
        [{"q": "x"}, {"q": "y", "n": {"k": [{}]}}],
    ),
    (
        ["<tool_call>", '{"name":"get_weather",', '"arguments":{"q":', "never"],
        {"options": {"num_predict": 3, "temperature": 0}},
        '<tool_call>{"name":"get_weather","arguments":{"q":',
        [],
    ),
    (["<tool_call>", "not json", "</tool_call>"], {}, "<tool_call>not json</tool_call>", []),
    (['{"name":', '"Alice",', '"age":3}'], {"tools": None}, '{"name":"Alice","age":3}', []),
]


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_what_counts_as_a_tool_call(server: Any, scripted: Callable[..., str], number: int) -> None:
    pieces, fields, content, arguments = ANSWERS[number]
    parent = scripted(f"answer{number}", pieces, "{{ messages[-1].content }}<|assistant|>")
    server.post("/api/create", {"model": "calls", "from": parent, "template": WITH_CALLS})
    body = {"model": "calls", "messages": [USER], "tools": [WEATHER], "options": {"temperature": 0}, **fields}
    whole = server.post("/api/chat", body)
    assert whole["done"] is True and whole["message"]["content"].strip() == content
    calls = [call["function"] for call in whole["message"].get("tool_calls", [])]
    assert [(call["name"], call["arguments"]) for call in calls] == [("get_weather", a) for a in arguments]
    records = [record["message"] for record in server.lines("/api/chat", body)]
    assert "".join(record["content"] for record in records) == whole["message"]["content"]
    streamed = [call["function"] for record in records for call in record.get("tool_calls", [])]
    assert streamed == calls

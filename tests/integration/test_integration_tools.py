"""Tool calls and thinking through everything, in Ollama's shape and in OpenAI's."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.integration

GO = {"role": "user", "content": "go"}
ADD = {
    "name": "add",
    "description": "d",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a"],
    },
}
TOOLS = [{"type": "function", "function": ADD}]
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "<|assistant|>"
)
CALLING = ['<tool_call>{"name": "add", ', '"arguments": {"b": "x", "a": 1}}', "</tool_call>"]
THINKING = ["<thi", "nk>I", " add</th", "ink>\n"]


@pytest.fixture(scope="module")
def scripted(server: Any, tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """scripted(name, pieces): the name of a model that answers these pieces."""
    folder: Path = tmp_path_factory.mktemp("tools")

    def add(name: str, pieces: list[str]) -> str:
        if f"{name}:latest" not in server.names():
            tiny_models.script_model(folder / f"{name}.gguf", pieces, tmpl=TEMPLATE)
            server.add(folder / f"{name}.gguf")
        return name

    return add


def test_a_call_in_ollamas_shape(server: Any, scripted: Any) -> None:
    body = {"model": scripted("calling", CALLING), "messages": [GO], "tools": TOOLS}
    whole = server.post("/api/chat", body)
    (call,) = whole["message"]["tool_calls"]
    assert call["function"] == {"index": 0, "name": "add", "arguments": {"b": "x", "a": 1}}
    assert list(call["function"]["arguments"]) == ["b", "a"]
    assert (whole["message"]["content"], whole["done_reason"]) == ("", "stop")
    records = server.lines("/api/chat", body)
    calls = [call for record in records for call in record["message"].get("tool_calls", [])]
    assert [c["function"] for c in calls] == [call["function"]]
    assert records[-1]["done"] is True
    assert "".join(record["message"]["content"] for record in records) == ""


def test_a_call_in_openais_shape(server: Any, scripted: Any) -> None:
    body = {"model": scripted("calling", CALLING), "messages": [GO], "tools": TOOLS}
    (choice,) = server.post("/v1/chat/completions", body)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"], choice["finish_reason"]) == ("function", "add", "tool_calls")
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": "x"}
    assert call["id"]
    text = server.http.post("/v1/chat/completions", json={**body, "stream": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [choice for event in events for choice in event["choices"]]
    streamed = [part for delta in deltas for part in delta["delta"].get("tool_calls") or []]
    assert [part["index"] for part in streamed] == [0]
    assert json.loads("".join(part["function"]["arguments"] for part in streamed)) == {"a": 1, "b": "x"}
    assert [d["finish_reason"] for d in deltas if d["finish_reason"]] == ["tool_calls"]
    assert not any(delta["delta"].get("content") for delta in deltas)


def test_the_result_of_a_call_goes_back(server: Any, scripted: Any) -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": {"b": "x", "a": 1}}}
    messages = [GO, {"role": "assistant", "content": "", "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_name": "add", "tool_call_id": "c1", "content": "7"}]
    body = {"model": scripted("calling", CALLING), "messages": messages, "_debug_render_only": True}
    text = server.post("/api/chat", body)["_debug_info"]["rendered_template"]
    assert '<tool_call>{"name": "add", "arguments": {"b": "x", "a": 1}}</tool_call><|end|><|tool|>7<|end|>' in text


def test_thinking_and_then_a_call(server: Any, scripted: Any) -> None:
    body = {"model": scripted("thinking", [*THINKING, *CALLING]), "messages": [GO], "tools": TOOLS}
    message = server.post("/api/chat", body)["message"]
    assert (message["thinking"], message["content"]) == ("I add", "")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["add"]
    records = server.lines("/api/chat", body)
    assert "".join(record["message"].get("thinking", "") for record in records) == "I add"
    assert server.post("/api/chat", body)["eval_count"] == len(THINKING) + len(CALLING) + 1


def test_a_choice_of_nothing_is_refused(server: Any, scripted: Any) -> None:
    body = {"model": scripted("calling", CALLING), "messages": [GO], "tool_choice": "required"}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "tool_choice" in response.json()["error"]["message"]

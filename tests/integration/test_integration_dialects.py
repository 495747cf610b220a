"""Anthropic's dialect and /api/render with a real model: tokens are counted, not guessed. Part of the default run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Model = Callable[[str], str]
MESSAGES = [{"role": "user", "content": "tell me"}]


def events(server: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = server.http.post("/v1/messages", json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def n_prompt(usage: dict[str, int]) -> int:
    """All tokens of a prompt: those found in the cache are counted apart."""
    return usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]


def test_the_prompt_is_counted_the_same_everywhere(server: Any, model: Model) -> None:
    body = {"model": model("story"), "max_tokens": 9, "messages": MESSAGES, "temperature": 0}
    whole = server.post("/v1/messages", body)
    assert whole["content"] == [{"type": "text", "text": "Once upon a time"}] and whole["stop_reason"] == "end_turn"
    n_input = n_prompt(whole["usage"])
    assert n_input > len(MESSAGES[0]["content"]), "one token a byte, and the template's own"
    found = events(server, body)
    assert n_prompt(found[0]["message"]["usage"]) == n_prompt(found[-2]["usage"]) == n_input
    assert found[-2]["usage"]["cache_read_input_tokens"] == n_input - 1 > 0
    assert found[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 5
    schema = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    for more in ({}, {"output_config": schema}):
        counted = server.post("/v1/messages/count_tokens", {"model": "story", "messages": MESSAGES, **more})
        assert counted == {"input_tokens": n_input}
    rendered = server.post("/api/render", {"model": "story", "messages": MESSAGES})
    assert "tell me" in rendered["prompt"] and len(rendered["tokens"]) == n_input
    assert server.post("/api/detokenize", {"model": "story", "tokens": rendered["tokens"]})["text"]


def test_what_ends_an_answer(server: Any, model: Model) -> None:
    body = {"model": model("story"), "max_tokens": 9, "messages": MESSAGES, "temperature": 0}
    stopped = server.post("/v1/messages", {**body, "stop_sequences": [" a"]})
    assert stopped["content"][0]["text"] == "Once upon"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " a")
    assert server.post("/v1/messages", {**body, "max_tokens": 2})["stop_reason"] == "max_tokens"


def test_a_conversation_that_is_too_long(server: Any, model: Model) -> None:
    long = {"model": model("story"), "max_tokens": 9, "messages": [{"role": "user", "content": "x" * 200}]}
    counted = server.post("/v1/messages/count_tokens", {**long, "options": {"num_ctx": 64}})["input_tokens"]
    for stream in (False, True):
        response = server.http.post("/v1/messages", json={**long, "options": {"num_ctx": 64}, "stream": stream})
        assert response.status_code == 400
        assert response.json()["error"]["message"] == f"prompt is too long: {counted} tokens > 64 maximum"


def test_a_template_for_one_request(server: Any, model: Model) -> None:
    body = {"model": model("story"), "prompt": "tell me", "template": "<<{{ .Prompt }}>>"}
    assert server.post("/api/render", body)["prompt"] == "<<tell me>>"
    response = server.http.post("/api/generate", json={**body, "template": "{{ .Prompt"})
    assert (response.status_code, response.json()["error"]) == (400, "template: :1: unclosed action")

"""OpenAI's endpoints with real models behind them: what people's clients have been hurt by."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pydantic
import pytest

pytestmark = pytest.mark.integration
Model = Callable[[str], str]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASSISTANT = "<|assistant|>"
WHOLE_STOPS = "MNOPQRSTUVWiiik tail"
TOOL_JINJA = (
    "{% if tools %}<|system|>{% for t in tools %}<tool>{{ t | tojson }}</tool>{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|end|>{% endfor %}<|assistant|>"
)
REFUSING_JINJA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}<|assistant|>"
)
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
ADD = {"type": "function", "function": {"name": "add", "description": "d", "parameters": PARAMETERS}}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def stream(server: Any, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a stream, which ends with [DONE]."""
    response = server.http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    *data, done, rest = response.content.decode("utf-8", "strict").split("\n\n")
    assert done == "data: [DONE]" and rest == ""
    return [json.loads(item.removeprefix("data: ")) for item in data]


def refused(server: Any, path: str, body: dict[str, Any]) -> str:
    """The text of a refusal, which has OpenAI's shape and is the same streamed or not."""
    texts = set()
    for is_streamed in (False, True):
        response = server.http.post(path, json={**body, "stream": is_streamed})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert {"message", "type", "param", "code"} <= set(error) and error["type"] == "invalid_request_error"
        texts.add(error["message"])
    (text,) = texts
    return str(text)


@pytest.fixture(scope="module")
def add(server: Any, tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """add(name, pieces, template): a model that answers with these pieces, in the store."""
    folder: Path = tmp_path_factory.mktemp("openai")

    def make(name: str, pieces: list[str], template: str) -> str:
        path = folder / f"{name}.gguf"
        if not path.exists():
            tiny_models.script_model(path, pieces, tmpl=template)
        return str(server.add(path))

    return make


@pytest.mark.parametrize("stop", ["B", ["B"]])
def test_stop_is_a_text_or_a_list(server: Any, model: Model, stop: Any) -> None:
    body = {"model": model("ab"), "messages": user("x"), "stop": stop, "max_tokens": 3, "temperature": 0}
    assert server.post(CHAT, body)["choices"][0]["message"]["content"] == "AAA"


def test_parts_and_null_content(server: Any, add: Callable[..., str]) -> None:
    name = add("parts", ["ok"], TOOL_JINJA)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"n":1}'}}
    text = {"type": "text", "text": "first"}
    body = {"model": name, "tools": [ADD], "temperature": 0}
    parts = server.post(CHAT, {**body, "messages": user([text, {**text, "text": "second"}])})
    single = server.post(CHAT, {**body, "messages": user("firstsecond")})
    assert parts["usage"]["prompt_tokens"] >= single["usage"]["prompt_tokens"]
    history = [
        *user("q"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]},
    ]
    assert server.post(CHAT, {**body, "messages": history})["choices"][0]["message"]["content"] == "ok"
    for content in (42, [{"type": "hologram", "x": 1}]):
        assert "content" in refused(server, CHAT, {**body, "messages": user(content)})


def test_tool_calls_streamed_and_not(server: Any, add: Callable[..., str]) -> None:
    pieces = ['<tool_call>{"name": "add", ', '"arguments": {"a": 1, "b": "x"}}', "</tool_call>"]
    body = {"model": add("calls", pieces, TOOL_JINJA), "messages": user("go"), "tools": [ADD], "temperature": 0}
    choice = server.post(CHAT, body)["choices"][0]
    chunks = [chunk["choices"][0] for chunk in stream(server, CHAT, body)]
    streamed = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", [])]
    for calls in (choice["message"]["tool_calls"], streamed):
        (call,) = calls
        assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": "x"} and call["function"]["name"] == "add"
        assert call["id"] and call["type"] == "function" and call["index"] == 0
    assert choice["finish_reason"] == chunks[-1]["finish_reason"] == "tool_calls"
    said = choice["message"]["content"] + "".join(chunk["delta"].get("content", "") for chunk in chunks)
    assert "<tool_call>" not in said and "arguments" not in said
    flat = {"type": "function", **ADD["function"]}  # type: ignore[dict-item]
    answer = server.post("/v1/responses", {"model": "calls", "input": "go", "tools": [flat], "temperature": 0})
    (item,) = answer["output"]
    assert item["type"] == "function_call" and json.loads(item["arguments"]) == {"a": 1, "b": "x"}


def test_seeds(server: Any, model: Model) -> None:
    body = {"model": model("random"), "messages": user("seed test"), "temperature": 0.9, "max_tokens": 20}

    def text(seed: int) -> str:
        return str(server.post(CHAT, {**body, "seed": seed})["choices"][0]["message"]["content"])

    assert text(7) == text(7) and len({text(seed) for seed in range(1, 6)}) >= 2
    several = server.post(CHAT, {**body, "seed": 1, "n": 3})["choices"]
    assert [choice["message"]["content"] for choice in several] == [text(1), text(2), text(3)]


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["PQRSTUV"], "MNO"),
        (["PQRSX"], WHOLE_STOPS),
        (["QRS"], "MNOP"),
        (["iik"], "MNOPQRSTUVWi"),
        (["V", "PQRS"], "MNO"),
        (["tail"], "MNOPQRSTUVWiiik "),
    ],
)
def test_stop_strings(server: Any, model: Model, stops: list[str], text: str) -> None:
    body = {"model": model("stops"), "prompt": "x", "temperature": 0, "stop": stops}
    whole = server.post(COMPLETIONS, body)["choices"][0]
    pieces = [chunk["choices"][0]["text"] for chunk in stream(server, COMPLETIONS, body)]
    assert whole["text"] == "".join(pieces) == text and whole["finish_reason"] == "stop"


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_logprobs(server: Any, model: Model, temperature: float) -> None:
    common = {"model": model("flat"), "max_tokens": 3, "temperature": temperature, "top_k": 1, "logprobs": True}
    body = {**common, "messages": user("x")}
    for more, n_top in (({}, 0), ({"top_logprobs": 2}, 2), ({"top_logprobs": 0}, 0)):
        choice = server.post(CHAT, {**body, **more})["choices"][0]
        entries = choice["logprobs"]["content"]
        parts = [chunk["choices"][0].get("logprobs") for chunk in stream(server, CHAT, {**body, **more})]
        assert entries == [entry for part in parts if part for entry in part["content"]]
        assert [entry["token"] for entry in entries] == ["A"] * 3 and choice["message"]["content"] == "AAA"
        for entry in entries:
            assert entry["logprob"] == pytest.approx(-0.6931, abs=0.01) and entry["bytes"] == [65]
            assert [top["token"] for top in entry["top_logprobs"]] == ["A", "B"][:n_top]
    scored = server.post(COMPLETIONS, {**common, "prompt": "x", "logprobs": 2})["choices"][0]["logprobs"]
    assert scored["tokens"] == ["A"] * 3 and scored["text_offset"] == [0, 1, 2]
    assert scored["token_logprobs"] == pytest.approx([-0.6931] * 3, abs=0.01)
    assert all(set(top) == {"A", "B"} for top in scored["top_logprobs"])
    assert "top_logprobs" in refused(server, CHAT, {**body, "top_logprobs": 999})


@pytest.mark.parametrize(("max_tokens", "text"), [(None, "🦙щ你!"), (2, ""), (4, "🦙")])
def test_characters_of_several_tokens(server: Any, model: Model, max_tokens: int | None, text: str) -> None:
    body = {"model": model("utf8"), "temperature": 0, "max_tokens": max_tokens}
    completed = stream(server, COMPLETIONS, {**body, "prompt": "x"})
    chatted = stream(server, CHAT, {**body, "messages": user("x")})
    assert "".join(chunk["choices"][0]["text"] for chunk in completed) == text
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chatted) == text
    reason = "length" if max_tokens else "stop"
    assert completed[-1]["choices"][0]["finish_reason"] == chatted[-1]["choices"][0]["finish_reason"] == reason


def test_a_long_chat_is_shortened_and_says_so(server: Any, model: Model) -> None:
    turns = [
        turn for k in range(10) for turn in (*user(f"u{k}" + "x" * 20), {"role": "assistant", "content": "y" * 20})
    ]
    messages = [{"role": "system", "content": "S" * 20}, *turns, *user("LAST")]
    answer = server.post(CHAT, {"model": model("random"), "messages": messages, "num_ctx": 128, "max_tokens": 1})
    assert answer["usage"]["prompt_tokens"] <= 128 and answer["truncated"]["messages"] > 0
    body = {"model": "random", "messages": user("z" * 400), "num_ctx": 128, "max_tokens": 1}
    assert "128" in refused(server, CHAT, body)
    strict = {"model": "random", "input": messages, "num_ctx": 128, "truncation": "disabled"}
    response = server.http.post("/v1/responses", json=strict)
    assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"


def test_a_template_that_refuses(server: Any, add: Callable[..., str]) -> None:
    """What a template does not take is made to fit, or refused in its own words: the same here and on /api/chat."""
    name = add("refusing", ["ok"], REFUSING_JINJA)
    system = [{"role": "system", "content": "s"}]
    for messages, words in (
        ([*system, *user("u")], "System role not supported"),
        ([*user("u"), *user("v")], "roles must alternate"),
        ([*user("u"), *user("v"), *system], "roles must alternate"),
    ):
        native = server.http.post("/api/chat", json={"model": name, "messages": messages, "stream": False})
        if native.status_code == 400:
            assert words in native.json()["error"] and words in refused(
                server, CHAT, {"model": name, "messages": messages}
            )
        else:
            choice = server.post(CHAT, {"model": name, "messages": messages})["choices"][0]
            assert choice["message"]["content"] == native.json()["message"]["content"] == "ok"
    assert "messages" in refused(server, CHAT, {"model": name, "messages": []})


def test_prompts_of_token_ids(server: Any, model: Model) -> None:
    tokens = server.post("/api/tokenize", {"model": model("story"), "text": f"x{ASSISTANT}"})["tokens"]
    body = {"model": "story", "temperature": 0, "prompt": [tokens, tokens], "echo": True}
    answer = server.post(COMPLETIONS, body)
    assert [choice["text"] for choice in answer["choices"]] == ["xOnce upon a time"] * 2
    assert answer["usage"]["prompt_tokens"] == 2 * len(tokens)
    assert "tokens" in refused(server, COMPLETIONS, {**body, "prompt": [10**6]})


class Sum(pydantic.BaseModel):
    a: int


def test_what_must_be_json_is(server: Any, add: Callable[..., str]) -> None:
    name = add("parts", ["ok"], TOOL_JINJA)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        answer = client.chat.completions.parse(model=name, messages=user("x"), response_format=Sum, seed=1)
        assert isinstance(answer.choices[0].message.parsed, Sum)
        response = client.responses.parse(model=name, input="x", text_format=Sum)
        assert isinstance(response.output_parsed, Sum)

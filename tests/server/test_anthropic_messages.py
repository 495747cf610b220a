"""/v1/messages and /v1/messages/count_tokens: the shapes of answers and errors, and what the runner is asked."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from localllm.server.anthropic import events

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]
Add = Callable[..., None]

TOOLS_JINJA = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
THINK_JINJA = "<think></think>{% for m in messages %}{{ m.content }}{% endfor %}"
TOOL = {"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {"z": {}, "a": {}}}}
NATIVE_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": TOOL["input_schema"]},
}
USAGE_OF_NO_CACHE = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def body_of(text: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": text}], **more}


async def events_of(r: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await r.post("/v1/messages", {**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"].startswith("req_")
    found = []
    for frame in response.text.removesuffix("\n\n").split("\n\n"):
        event, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert event == f"event: {found[-1]['type']}"
    return found


async def asked_of_runner(r: Any, body: dict[str, Any]) -> dict[str, Any]:
    """The request as the runner got it; the last text of the body must be `!request`."""
    response = await r.post("/v1/messages", body)
    assert response.status_code == 200, response.text
    return dict(json.loads(response.json()["content"][0]["text"]))


async def test_a_whole_message(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        response = await r.post("/v1/messages", body_of("one two"))
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert response.headers["request-id"].startswith("req_")
    message = response.json()
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "one two "}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 2, **USAGE_OF_NO_CACHE, "output_tokens": 2},
    }


async def test_a_streamed_message(running: Running, add_model: Add) -> None:
    add_model(jinja=THINK_JINJA + TOOLS_JINJA)
    async with running() as r:
        found = await events_of(r, body_of("!think:hm !think:so one two !call !call", tools=[TOOL]))
    start, ping, *blocks, delta, stop = found
    assert start["message"]["content"] == [] and start["message"]["stop_reason"] is None
    assert start["message"]["usage"] == {"input_tokens": 6, **USAGE_OF_NO_CACHE, "output_tokens": 0}
    assert ping == {"type": "ping"} and stop == {"type": "message_stop"}
    assert delta == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"input_tokens": 6, **USAGE_OF_NO_CACHE, "output_tokens": 6},
    }

    def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"type": "content_block_start", "index": index, "content_block": content},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    call = {"type": "tool_use", "id": "toolu_abcd1234", "name": "add", "input": {}}
    assert blocks == [
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "thinking_delta", "thinking": "so"},
            {"type": "signature_delta", "signature": events.SIGNATURE},
        ),
        *block(
            1,
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": "one "},
            {"type": "text_delta", "text": "two "},
        ),
        *block(2, call, {"type": "input_json_delta", "partial_json": '{"a": 1}'}),
        *block(3, call, {"type": "input_json_delta", "partial_json": '{"a": 1}'}),
    ]


async def test_a_whole_message_is_its_stream_folded(running: Running, add_model: Add) -> None:
    add_model(jinja=THINK_JINJA + TOOLS_JINJA)
    body = body_of("!think:hm one !call", tools=[TOOL])
    async with running() as r:
        whole = (await r.post("/v1/messages", body)).json()
        folded = events.fold(await events_of(r, body))
    assert whole["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": events.SIGNATURE},
        {"type": "text", "text": "one "},
        {"type": "tool_use", "id": "toolu_abcd1234", "name": "add", "input": {"a": 1}},
    ]
    assert {**folded, "id": ""} == {**whole, "id": ""}


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        ("a !length", "max_tokens", None),
        ("a !stop:END b", "stop_sequence", "END"),
        ("a !stop:own b", "end_turn", None),
        ("", "end_turn", None),
    ],
)
async def test_stop_reasons(running: Running, add_model: Add, script: str, reason: str, sequence: str | None) -> None:
    add_model(params={"stop": ["own"]})
    async with running() as r:
        message = (await r.post("/v1/messages", body_of(script, stop_sequences=["END", ""]))).json()
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert message["content"] == ([{"type": "text", "text": "a "}] if script else [])


async def test_what_the_runner_is_asked(running: Running, add_model: Add) -> None:
    add_model(jinja=THINK_JINJA + TOOLS_JINJA, params={"stop": ["own"], "temperature": 0.3}, system="of the model")
    body = {
        "model": "m",
        "max_tokens": 9,
        "system": [
            {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "brief"},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "calling"},
                    {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"z": 1, "a": 2}},
                    {"type": "tool_use", "id": "toolu_2", "name": "sub", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "is_error": True,
                        "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}],
                    },
                    {"type": "tool_result", "tool_use_id": "toolu_3"},
                    {"type": "document", "title": "T", "source": {"type": "text", "data": "body"}},
                ],
            },
            {"role": "user", "content": "!request"},
        ],
        "stop_sequences": ["END"],
        "top_k": 7,
        "top_p": 0.5,
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}, "strict": False, "type": "custom"}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "options": {"num_ctx": 512, "seed": 3},
    }
    async with running() as r:
        asked = await asked_of_runner(r, body)
    system, user, assistant, *results, document, _ = asked["messages"]
    assert system == {"role": "system", "content": "be\nbrief"} and user == {"role": "user", "content": "a\nb"}
    assert assistant == {
        "role": "assistant",
        "content": "calling",
        "thinking": "hm",
        "tool_calls": [
            {"id": "toolu_1", "function": {"index": 0, "name": "add", "arguments": {"z": 1, "a": 2}}},
            {"id": "toolu_2", "function": {"index": 1, "name": "sub", "arguments": {}}},
        ],
    }
    assert list(assistant["tool_calls"][0]["function"]["arguments"]) == ["z", "a"]
    assert results == [
        {"role": "tool", "content": "42", "tool_name": "add", "tool_call_id": "toolu_1"},
        {"role": "tool", "content": "Error: no\nway", "tool_name": "sub", "tool_call_id": "toolu_2"},
        {"role": "tool", "content": "", "tool_call_id": "toolu_3"},
    ]
    assert document == {"role": "user", "content": "T\nbody"}
    options = asked["options"]
    assert (options["num_predict"], options["top_k"], options["top_p"], options["temperature"]) == (9, 7, 0.5, 0.3)
    assert options["stop"] == ["own", "END"] and (options["num_ctx"], options["seed"]) == (512, 3)
    assert asked["tools"] == [NATIVE_TOOL] and asked["tool_choice"] is None and asked["think"] is True
    assert list(asked["tools"][0]["function"]["parameters"]["properties"]) == ["z", "a"]
    assert asked["parallel_tool_calls"] is False and asked["truncate"] is False and asked["format"] is None


@pytest.mark.parametrize(
    ("choice", "asked_for"),
    [
        ({"type": "auto"}, None),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "add"}, {"name": "add"}),
        ({"type": "none"}, "none"),
    ],
)
async def test_tool_choices(running: Running, add_model: Add, choice: dict[str, Any], asked_for: Any) -> None:
    add_model(jinja=TOOLS_JINJA)
    async with running() as r:
        asked = await asked_of_runner(r, body_of("!request", tools=[{**TOOL, "strict": True}], tool_choice=choice))
    assert asked["tool_choice"] == asked_for and asked["parallel_tool_calls"] is True
    assert asked["tools"][0]["function"]["strict"] is True


@pytest.mark.parametrize(
    ("more", "think"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low"),
        ({"output_config": {"effort": "xhigh"}}, "max"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, False),
    ],
)
async def test_thinking(running: Running, add_model: Add, more: dict[str, Any], think: Any) -> None:
    add_model("thinks", jinja=THINK_JINJA)
    add_model("m")
    async with running() as r:
        assert (await asked_of_runner(r, {**body_of("!request"), "model": "thinks", **more}))["think"] == think
        without = (await asked_of_runner(r, body_of("!request", **more)))["think"]
        assert without == (False if think is False else None), "a model that cannot think answers without"


async def test_a_schema_for_the_answer(running: Running, add_model: Add) -> None:
    add_model()
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    async with running() as r:
        config = {"format": {"type": "json_schema", "schema": schema}}
        asked = await asked_of_runner(r, body_of("!request", output_config=config))
    assert asked["format"] == schema and list(asked["format"]["properties"]) == ["z", "a"]


async def test_calls_made_by_a_server_stay_in_order(running: Running, add_model: Add) -> None:
    add_model(jinja=TOOLS_JINJA)
    found = [{"type": "web_search_result", "title": "T", "url": "u"}]
    said = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found},
        {"type": "text", "text": "so"},
    ]
    body = body_of("q")
    body["messages"] += [{"role": "assistant", "content": said}, {"role": "user", "content": "!request"}]
    async with running() as r:
        _, call, result, text, _ = (await asked_of_runner(r, body))["messages"]
    assert call["tool_calls"][0]["function"]["name"] == "web_search"
    assert result["role"] == "tool" and json.loads(result["content"]) == found
    assert result["tool_name"] == "web_search" and text == {"role": "assistant", "content": "so"}


REFUSALS = [
    ({"model": ""}, 400, "invalid_request_error", "model is required"),
    ({"model": "nope"}, 404, "not_found_error", "model 'nope' not found"),
    ({"model": "a b"}, 400, "invalid_request_error", "invalid model name"),
    ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens is required and must be positive"),
    ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens is required and must be positive"),
    ({"messages": []}, 400, "invalid_request_error", "messages is required"),
    (
        {"max_tokens": "9"},
        400,
        "invalid_request_error",
        "json: cannot unmarshal string into Go struct field MessagesRequest.max_tokens of type int",
    ),
    ({"temperature": "hot"}, 400, "invalid_request_error", 'option "temperature" must be of type float32'),
    (
        {"messages": [{"role": "bot", "content": "x"}]},
        400,
        "invalid_request_error",
        'messages.0.role: expected "user", "assistant" or "system", not "bot"',
    ),
    (
        {"messages": [{"role": "user", "content": 42}]},
        400,
        "invalid_request_error",
        "messages.0.content: expected a string or an array of blocks, not 42",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
        400,
        "invalid_request_error",
        'messages.0.content.0.type: blocks of type "hologram" are not supported',
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        400,
        "invalid_request_error",
        "messages.0.content.0.text: expected a string, not 1",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}]},
        400,
        "invalid_request_error",
        'messages.0.content.0.source.type: expected "base64": images are not fetched, not "url"',
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
                    ],
                }
            ]
        },
        400,
        "invalid_request_error",
        '"m" does not support images',
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": "{}"}]}]},
        400,
        "invalid_request_error",
        'messages.0.content.0.input: expected an object, not "{}"',
    ),
    ({"system": 3}, 400, "invalid_request_error", "system: expected a string or an array of blocks, not 3"),
    (
        {"tools": [TOOL]},
        400,
        "invalid_request_error",
        "registry.ollama.ai/library/m:latest does not support tools",
    ),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        400,
        "invalid_request_error",
        'tools.0.type: "web_search_20250305" is not supported: only tools with an input_schema are',
    ),
    (
        {"tools": [{"name": "f"}]},
        400,
        "invalid_request_error",
        "tools.0.input_schema: expected a JSON schema, not null",
    ),
    ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", 'tool_choice: "any" needs tools'),
    (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nope"}},
        400,
        "invalid_request_error",
        'tool_choice.name: expected one of the tools (add), not "nope"',
    ),
    (
        {"thinking": {"type": "hard"}},
        400,
        "invalid_request_error",
        'thinking.type: expected "enabled", "disabled" or "adaptive", not "hard"',
    ),
    (
        {"output_config": {"effort": "huge"}},
        400,
        "invalid_request_error",
        'output_config.effort: expected one of low, medium, high, xhigh, max, not "huge"',
    ),
]


@pytest.mark.parametrize(("more", "status", "kind", "text"), REFUSALS)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals(
    running: Running, add_model: Add, more: dict[str, Any], status: int, kind: str, text: str, stream: bool
) -> None:
    add_model()
    async with running() as r:
        response = await r.post("/v1/messages", body_of(**{"text": "x", "stream": stream, **more}))
    body = response.json()
    assert (response.status_code, body["error"]["type"], body["error"]["message"]) == (status, kind, text)
    assert body["type"] == "error" and body["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long(running: Running, add_model: Add, stream: bool) -> None:
    add_model()
    async with running() as r:
        response = await r.post("/v1/messages", body_of("!error:ContextLengthError", stream=stream))
        assert response.status_code == 400
        last = response.json()
    assert last["type"] == "error" and last["error"]["type"] == "invalid_request_error"
    assert last["error"]["message"] == "prompt is too long: 10 tokens > 4 maximum"


async def test_bad_bodies(running: Running) -> None:
    async with running() as r:
        for content, text in ((b"", "missing request body"), (b'{"a', "unexpected EOF")):
            response = await r.post("/v1/messages", content)
            assert response.status_code == 400 and response.json()["error"]["message"] == text
        response = await r.http.get("/v1/messages")
        assert response.status_code == 405 and response.json()["error"]["type"] == "invalid_request_error"


async def test_an_error_after_the_first_event_is_an_event(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        for how in ("!error:RunnerError", "!crash"):
            *_, last = await events_of(r, body_of(f"a {how}"))
            assert last["type"] == "error" and last["error"]["type"] == "api_error" and last["error"]["message"]
            assert last["request_id"].startswith("req_")
            whole = await r.post("/v1/messages", body_of(f"a {how}"))
            assert whole.status_code == 500 and whole.json()["error"]["type"] == "api_error"


async def test_a_full_queue_is_an_overload(running: Running, add_model: Add) -> None:
    add_model()
    async with running(scheduler={"max_queue": 1}, num_parallel=1) as r:
        await r.post("/api/generate", {"model": "m"})
        body = body_of("!sleep:0.2 x")
        responses = await asyncio.gather(*(r.post("/v1/messages", body) for _ in range(4)))
    refused = [response for response in responses if response.status_code != 200]
    assert refused and {response.status_code for response in refused} == {503}
    assert {response.json()["error"]["type"] for response in refused} == {"overloaded_error"}


async def test_pings_while_nothing_comes(running: Running, add_model: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PING_INTERVAL_S", 0.05)
    add_model(params={"fake": {"load_steps": 2, "load_delay_s": 0.1}})
    async with running() as r:
        found = [event["type"] for event in await events_of(r, body_of("!sleep:0.3 a !sleep:0.3 b"))]
    assert found[:2] == ["message_start", "ping"], "while the model loads, an error would still have its status"
    first = found.index("content_block_delta")
    second = found.index("content_block_delta", first + 1)
    assert "ping" in found[2:first] and "ping" in found[first:second]


async def test_pings_end_with_the_stream(running: Running, add_model: Add, until: Any) -> None:
    add_model()
    async with running() as r:
        body = {**body_of("!forever"), "stream": True}
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(r.post("/v1/messages", body), 1.0)
        await until(lambda: not any(model.active for model in r.daemon.scheduler.running()))


async def test_counting(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        body = body_of("one two three")
        del body["max_tokens"]
        response = await r.post("/v1/messages/count_tokens", body)
        assert (response.status_code, response.json()) == (200, {"input_tokens": 3})
        usage = (await r.post("/v1/messages", body_of("one two three"))).json()["usage"]
        assert usage["input_tokens"] == 3
        refused = await r.post("/v1/messages/count_tokens", {**body, "model": "nope"})
        assert refused.status_code == 404 and refused.json()["error"]["type"] == "not_found_error"

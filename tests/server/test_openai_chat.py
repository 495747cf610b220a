"""/v1/chat/completions: what reaches the runner, the shapes of answers and streams, and what is refused."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from localllm.server.binding import Place
from localllm.server.openai import chat
from localllm.server.openai.choices import merged

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]

PATH = "/v1/chat/completions"
TOOLS_JINJA = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
THINK_JINJA = "<think></think>{% for m in messages %}{{ m.content }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


async def asked_of_runner(r: Any, body: dict[str, Any]) -> dict[str, Any]:
    """The request as the runner got it: the message `!request` makes the fake runner send it back."""
    response = await r.post(PATH, {"model": "m", "messages": user("!request"), **body})
    assert response.status_code == 200, response.text
    return dict(json.loads(response.json()["choices"][0]["message"]["content"]))


def events(text: str) -> list[dict[str, Any]]:
    """The objects of a stream, which must end with [DONE]."""
    *data, done, rest = text.split("\n\n")
    assert done == "data: [DONE]" and rest == ""
    return [json.loads(item.removeprefix("data: ")) for item in data]


async def stream(r: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await r.post(PATH, {"model": "m", "stream": True, **body})
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    return events(response.text)


async def error_of(r: Any, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    response = await r.post(PATH, {"model": "m", "messages": user("hi"), **body})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    return dict(error)


async def test_a_whole_answer(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        response = await r.post(PATH, {"model": "M", "messages": user("one two"), "unknown": 1})
    assert response.headers["content-type"].startswith("application/json")
    answer = response.json()
    assert answer.pop("id").startswith("chatcmpl-") and isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "chat.completion",
        "model": "M",
        "system_fingerprint": "fp_localllm",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "one two "}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_the_order_of_a_stream(running: Running, add_model: Add) -> None:
    add_model(jinja=THINK_JINJA)
    async with running() as r:
        plain = await stream(r, {"messages": user("!think:hm one two")})
        with_usage = await stream(r, {"messages": user("one"), "stream_options": {"include_usage": True}})
        empty = await stream(r, {"messages": user("!length")})
    assert [chunk["choices"][0]["delta"] for chunk in plain] == [
        {"role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm"},
        {"content": "one "},
        {"content": "two "},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in plain] == [None, None, None, "stop"]
    assert len({(chunk["id"], chunk["created"]) for chunk in plain}) == 1
    for chunk in plain:
        assert chunk["object"] == "chat.completion.chunk" and chunk["model"] == "m" and "usage" not in chunk
    *_, finish, last = with_usage
    assert finish["choices"][0]["finish_reason"] == "stop" and "usage" not in finish
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 2
    assert [chunk["choices"][0]["delta"] for chunk in empty] == [{"role": "assistant", "content": ""}, {}]
    assert empty[-1]["choices"][0]["finish_reason"] == "length"


async def test_tool_calls(running: Running, add_model: Add) -> None:
    add_model(jinja=TOOLS_JINJA)
    body = {"messages": user("hi !call"), "tools": [TOOL]}
    call = {
        "id": "call_abcd1234",
        "index": 0,
        "type": "function",
        "function": {"name": "add", "arguments": '{"a":1}'},
    }
    async with running() as r:
        whole = (await r.post(PATH, {"model": "m", **body})).json()["choices"][0]
        first, second, finish = await stream(r, body)
    assert whole["message"] == {"role": "assistant", "content": "hi ", "tool_calls": [call]}
    assert whole["finish_reason"] == "tool_calls"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "hi "}
    assert second["choices"][0]["delta"] == {"tool_calls": [call]}
    assert finish["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "tool_calls"}


async def test_thinking_of_a_whole_answer(running: Running, add_model: Add) -> None:
    add_model(jinja=THINK_JINJA)
    async with running() as r:
        answer = (await r.post(PATH, {"model": "m", "messages": user("!think:hm !think:hm a")})).json()
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "a ",
        "reasoning": "hmhm",
        "reasoning_content": "hmhm",
    }


async def test_options(running: Running, add_model: Add) -> None:
    add_model(params={"temperature": 0.5, "top_k": 3, "seed": 1})
    async with running() as r:
        options = (await asked_of_runner(r, {}))["options"]
        assert (options["temperature"], options["top_p"], options["top_k"]) == (1.0, 1.0, 3)
        given = {
            "temperature": 0,
            "top_p": 0.5,
            "seed": 7,
            "frequency_penalty": 0.25,
            "presence_penalty": 0.75,
            "logit_bias": {"50": -100},
            "stop": "end",
            "max_tokens": 5,
            "num_ctx": 64,
            "min_p": 0.1,
            "options": {"temperature": 2, "repeat_penalty": 1.5, "top_k": None},
        }
        options = (await asked_of_runner(r, given))["options"]
        assert options["logit_bias"] == {"50": -100.0} and options["stop"] == ["end"] and options["num_predict"] == 5
        assert (options["temperature"], options["top_p"], options["seed"]) == (0.0, 0.5, 7)
        assert (options["frequency_penalty"], options["presence_penalty"]) == (0.25, 0.75)
        assert (options["num_ctx"], options["min_p"], options["repeat_penalty"], options["top_k"]) == (64, 0.1, 1.5, 3)
        both = {"max_tokens": 5, "max_completion_tokens": 6, "stop": ["a", "b"], "options": {"temperature": 0.25}}
        options = (await asked_of_runner(r, both))["options"]
        assert (options["num_predict"], options["stop"], options["temperature"]) == (6, ["a", "b"], 0.25)


async def test_what_else_reaches_the_runner(running: Running, add_model: Add) -> None:
    add_model(jinja=TOOLS_JINJA)
    schema = {"type": "object", "properties": {"zone": {}, "at": {}}}
    named = {"type": "function", "function": {"name": "add"}}
    other = {"type": "function", "function": {"name": "sub"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [other]}}
    async with running() as r:
        asked = await asked_of_runner(r, {"chat_template_kwargs": {"x": 1}, "grammar": "root ::= [a]"})
        assert asked["template_arguments"] == {"x": 1} and asked["grammar"] == "root ::= [a]"
        assert asked["kind"] == "chat" and asked["parallel_tool_calls"] is True and asked["tool_choice"] is None
        for response_format, native in (
            ({"type": "text"}, None),
            ({"type": "json_object"}, "json"),
            ({"type": "json_object", "schema": schema}, schema),
            ({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}, {}),
            ({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}, schema),
        ):
            asked = await asked_of_runner(r, {"response_format": response_format})
            assert asked["format"] == native and json.dumps(asked["format"]) == json.dumps(native)
        assert (await asked_of_runner(r, {"format": schema}))["format"] == schema
        for choice, native in (
            (None, None),
            ("auto", None),
            ("none", "none"),
            ("required", "required"),
            (named, {"name": "add"}),
        ):
            asked = await asked_of_runner(r, {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False})
            assert asked["tool_choice"] == native and asked["tools"] == [TOOL] and not asked["parallel_tool_calls"]
        asked = await asked_of_runner(r, {"tools": [TOOL, other], "tool_choice": allowed})
        assert asked["tools"] == [other] and asked["tool_choice"] == "required"


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning_effort": "medium"}, "medium"),
        ({"reasoning": {"effort": "high"}}, "high"),
        ({"reasoning": {"effort": "xhigh"}}, "max"),
        ({"reasoning": {}}, None),
        ({"think": False, "reasoning_effort": "high"}, False),
        ({"think": "low"}, "low"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, None),
    ],
)
async def test_thinking(running: Running, add_model: Add, fields: dict[str, Any], think: Any) -> None:
    add_model(jinja=THINK_JINJA)
    async with running() as r:
        assert (await asked_of_runner(r, fields))["think"] == think


async def test_messages(running: Running, add_model: Add) -> None:
    add_model(jinja=TOOLS_JINJA)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": [2]}'}}
    bare = {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call, bare]},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "42"}]},
        {"role": "tool", "tool_call_id": "c1", "name": "other", "content": "43"},
        {"role": "tool", "tool_call_id": "c9", "content": "44"},
        {"role": "assistant", "content": "so", "reasoning": "why"},
        {"role": "user", "content": "!request"},
    ]
    async with running() as r:
        asked = await asked_of_runner(r, {"messages": messages})
    functions = [
        {"index": 0, "name": "f", "arguments": {"b": 1, "a": [2]}},
        {"index": 0, "name": "g", "arguments": {}},
    ]
    calls = [{"id": "c1", "function": functions[0]}, {"id": "c2", "function": functions[1]}]
    assert asked["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first\n\nsecond"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "42", "tool_name": "g", "tool_call_id": "c2"},
        {"role": "tool", "content": "43", "tool_name": "other", "tool_call_id": "c1"},
        {"role": "tool", "content": "44", "tool_call_id": "c9"},
        {"role": "assistant", "content": "so", "thinking": "why"},
        {"role": "user", "content": "!request"},
    ]
    assert list(asked["messages"][2]["tool_calls"][0]["function"]["arguments"]) == ["b", "a"]


async def test_several_choices(running: Running, add_model: Add) -> None:
    add_model()
    body = {"model": "m", "messages": user("!options"), "n": 3, "seed": 7}
    async with running() as r:
        answer = (await r.post(PATH, body)).json()
        random = (await r.post(PATH, {**body, "seed": None})).json()
        chunks = await stream(r, {**body, "messages": user("a b"), "stream_options": {"include_usage": True}})
    seeds = [json.loads(choice["message"]["content"])["seed"] for choice in answer["choices"]]
    assert seeds == [7, 8, 9] and [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {json.loads(choice["message"]["content"])["seed"] for choice in random["choices"]} == {-1}
    assert answer["usage"]["prompt_tokens"] == 1 and answer["usage"]["completion_tokens"] == 3
    *said, last = chunks
    for index in range(3):
        own = [chunk["choices"][0] for chunk in said if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == "a b "
        assert own[0]["delta"]["role"] == "assistant" and own[-1]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] == 6 and last["usage"]["prompt_tokens"] == 2


async def test_logprobs(running: Running, add_model: Add) -> None:
    add_model(jinja=THINK_JINJA)
    body = {"messages": user("!think:x !logprobs !logprobs"), "logprobs": True, "top_logprobs": 1}
    tiny = {"token": "b", "logprob": None, "bytes": [98]}
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [tiny]}
    async with running() as r:
        whole = (await r.post(PATH, {"model": "m", **body})).json()["choices"][0]
        chunks = await stream(r, body)
        without = (await r.post(PATH, {"model": "m", "messages": user("a")})).json()["choices"][0]
        asked = await asked_of_runner(r, {"logprobs": True, "top_logprobs": 4})
    assert whole["logprobs"] == {"content": [entry, entry]} and "logprobs" not in without
    assert [chunk["choices"][0].get("logprobs") for chunk in chunks] == [None, *2 * [{"content": [entry]}], None]
    assert asked["logprobs"] is True and asked["top_logprobs"] == 4


async def test_errors_in_a_stream_are_told(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        first, last = await stream(r, {"messages": user("one !error:RunnerError")})
        assert first["choices"][0]["delta"]["content"] == "one "
        assert last["error"]["message"] == "scripted error" and last["error"]["type"] == "api_error"
        response = await r.post(PATH, {"model": "m", "messages": user("!error:RequestError"), "stream": True})
        assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"
        response = await r.post(PATH, {"model": "m", "messages": user("!error:ContextLengthError")})
        assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"
        *_, last = await stream(r, {"messages": user("one !crash"), "n": 2})
        assert "unexpectedly stopped" in last["error"]["message"]
        assert (await r.post(PATH, {"model": "m", "messages": user("a")})).status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"messages": []}, "messages", "[] is too short - 'messages'"),
        ({"messages": None}, "messages", "[] is too short - 'messages'"),
        ({"messages": "hi"}, "messages", "json: cannot unmarshal string into Go struct field "),
        ({"messages": ["hi"]}, "messages[0]", 'expected an object, not "hi"'),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is required"),
        ({"messages": [{"role": 1}]}, "messages[0].role", "expected a string, not the number 1"),
        ({"messages": user(42)}, "messages[0].content", "expected a string or an array of parts, not the number 42"),
        ({"messages": user(None)}, "messages[0].content", "not null"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content", "not null"),
        ({"messages": user(["x"])}, "messages[0].content[0]", 'expected an object, not "x"'),
        ({"messages": user([{"type": "hologram"}])}, "messages[0].content[0].type", 'image_url, not "hologram"'),
        ({"messages": user([{"type": {}}])}, "messages[0].content[0].type", "not an object"),
        ({"response_format": {"type": []}}, "response_format.type", "not an array"),
        ({"messages": user([{"type": "text", "text": 1}])}, "messages[0].content[0].text", "expected a string"),
        (
            {"messages": user([{"type": "input_audio", "input_audio": {}}])},
            "messages[0].content[0].type",
            "audio input is not supported",
        ),
        (
            {"messages": user([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}])},
            "messages[0].content[0].image_url",
            "image URLs are not currently supported, please use base64 encoded data instead",
        ),
        (
            {"messages": user([{"type": "image_url", "image_url": "data:image/gif;base64,AAAA"}])},
            "messages[0].content[0].image_url",
            "invalid image input",
        ),
        ({"temperature": "hot"}, "temperature", "of type float64"),
        ({"max_tokens": 1.5}, "max_tokens", "of type int"),
        ({"stop": 1}, "stop", "expected a string or an array of strings, not the number 1"),
        ({"n": 0}, "n", "must be in 1..128, not 0"),
        ({"n": 129}, "n", "must be in 1..128, not 129"),
        ({"stream": "yes"}, "stream", "of type bool"),
        ({"stream_options": []}, "stream_options", "of type openai.StreamOptions"),
        ({"top_logprobs": 2}, "top_logprobs", "needs `logprobs` to be true"),
        ({"logprobs": True, "top_logprobs": 21}, None, "top_logprobs must be between 0 and 20"),
        ({"logit_bias": {"1": "x"}}, None, 'option "logit_bias" must be an object'),
        ({"num_ctx": "big"}, "num_ctx", "of type float64"),
        ({"options": {"top_k": "x"}}, None, 'option "top_k" must be of type integer'),
        ({"keep_alive": "300"}, "keep_alive", 'missing unit in duration "300"'),
        ({"think": "x"}, "think", 'invalid think value: "x"'),
        ({"think": True}, None, '"m" does not support thinking'),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "expected one of none, minimal, low, medium, high, xhigh"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort", "not the number 1"),
        ({"response_format": {"type": "xml"}}, "response_format.type", 'json_object or json_schema, not "xml"'),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "not null"),
        ({"response_format": {"type": "text"}, "format": "json"}, "format", "cannot be given beside response_format"),
        ({"response_format": {"type": "text"}, "format": {}}, "format", "cannot be given beside response_format"),
        (
            {"response_format": {"type": "json_object", "schema": []}},
            "response_format.schema",
            "expected a JSON schema",
        ),
        ({"format": "xml"}, None, "invalid format"),
        ({"functions": [{}]}, "functions", "is not supported"),
        ({"tools": {}}, "tools", "of type []"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", 'expected function, not "custom"'),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "is required"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name", "is required"),
        ({"tools": [{"function": {"name": "f", "parameters": 1}}]}, "tools.function.parameters", "unmarshal number"),
        ({"tools": [TOOL]}, None, "registry.ollama.ai/library/m:latest does not support tools"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools to choose from"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "expected none, auto, required or a function"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
            'there is no tool "f"',
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function"}},
            "tool_choice",
            "expected the name of a function, not null",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            "tool_choice.tools",
            "expected an array of functions",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "mode": {"type": "allowed_tools"}, "tools": [TOOL]},
            },
            "tool_choice.mode",
            "expected auto or required, not an object",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
            "invalid tool call arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[NaN]"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
            "invalid tool call arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]},
            "messages[0].tool_calls[0].function.name",
            "is required",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls", "expected an array"),
        ({"guided_choice": ["a"]}, "guided_choice", "not supported, use `response_format`"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs", "not supported"),
        ({"model": ""}, None, "model is required"),
        ({"model": "a b"}, None, "invalid model name"),
    ],
)
async def test_what_is_refused(
    running: Running, add_model: Add, body: dict[str, Any], param: str | None, text: str
) -> None:
    add_model()
    async with running() as r:
        error = await error_of(r, body)
    assert text in error["message"] and error["param"] == param and error["type"] == "invalid_request_error"
    assert param is None or param in error["message"]


async def test_images_need_a_model_that_sees(running: Running, add_model: Add) -> None:
    add_model()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with running() as r:
        assert "does not support images" in (await error_of(r, {"messages": user([image])}))["message"]
        bad = {"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}
        assert "illegal base64 data" in (await error_of(r, {"messages": user([bad])}))["message"]


async def test_bodies_that_are_no_request(running: Running, add_model: Add) -> None:
    async with running() as r:
        for body, text in (("", "missing request body"), ("{", "unexpected EOF"), ("[]", "cannot unmarshal array")):
            error = (await r.post(PATH, body)).json()["error"]
            assert text in error["message"] and error["type"] == "invalid_request_error"
        error = await error_of(r, {"model": "nope"}, 404)
        assert error["message"] == "model 'nope' not found" and error["type"] == "not_found_error"


async def test_a_client_that_leaves_ends_every_choice(running: Running, add_model: Add, until: Any) -> None:
    add_model()
    async with running(num_parallel=2) as r:
        body = {"model": "m", "messages": user("!forever"), "stream": True, "n": 2}
        bound = chat.CHAT_COMPLETION_REQUEST.bind(body, Place("x"))
        response = await chat.answer(r.daemon, bound)
        seen = set()
        while len(seen) < 2:
            seen.add((await anext(response.records))["choices"][0]["index"])
        assert r.daemon.scheduler.running()[0].active == 2
        await response.records.aclose()
        await until(lambda: r.daemon.scheduler.running()[0].active == 0)


async def count(n: int, closed: list[int], error: Exception | None = None) -> AsyncGenerator[int, None]:
    try:
        for i in range(n):
            await asyncio.sleep(0)
            yield i
        if error is not None:
            raise error
    finally:
        closed.append(n)


async def test_sources_are_merged_in_their_own_order() -> None:
    closed: list[int] = []
    items = [item async for item in merged([count(200, closed), count(3, closed), count(0, closed)])]
    assert [i for place, i in items if place == 0] == list(range(200))
    assert [i for place, i in items if place == 1] == list(range(3)) and len(items) == 203
    assert sorted(closed) == [0, 3, 200]


async def test_the_first_error_ends_all_sources() -> None:
    closed: list[int] = []
    heard = []
    with pytest.raises(ValueError, match="no more"):
        async for item in merged([count(100_000, closed), count(3, closed, ValueError("no more"))]):
            heard.append(item)
    assert [i for place, i in heard if place == 1] == [0, 1, 2] and sorted(closed) == [3, 100_000]

"""/v1/responses: items in and out, events in order with a terminal one, what is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]

PATH = "/v1/responses"
BOTH_JINJA = (
    "<think></think>{% if tools %}{{ tools }}{% endif %}"
    "{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
)
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
NATIVE_TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


async def respond(r: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = await r.post(PATH, {"model": "m", **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def asked_of_runner(r: Any, body: dict[str, Any]) -> dict[str, Any]:
    answer = await respond(r, {"input": "!request", **body})
    return dict(json.loads(answer["output"][0]["content"][0]["text"]))


async def stream(r: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream; each is named by its type, and their numbers count up from 0."""
    response = await r.post(PATH, {"model": "m", "stream": True, **body})
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


async def test_a_whole_answer(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        answer = await respond(r, {"input": "one two", "instructions": "be brief", "metadata": {"a": "b"}})
    (item,) = answer.pop("output")
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "one two ", "annotations": []}],
    }
    assert answer.pop("id").startswith("resp_")
    assert isinstance(answer.pop("created_at"), int) and isinstance(answer.pop("completed_at"), int)
    assert answer == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "be brief",
        "max_output_tokens": None,
        "metadata": {"a": "b"},
        "model": "m",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "auto",
        "usage": {
            "input_tokens": 2,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 4,
        },
    }


async def test_the_events_of_thinking_text_and_calls(running: Running, add_model: Add) -> None:
    add_model(jinja=BOTH_JINJA)
    body = {"input": "!think:h !think:m one two !call !call", "tools": [TOOL]}
    async with running() as r:
        events = await stream(r, body)
        whole = await respond(r, body)
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "reasoning_summary_part.added"),
        *("reasoning_summary_text.delta", "reasoning_summary_text.delta", "reasoning_summary_text.done"),
        *("reasoning_summary_part.done", "output_item.done", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *(*call, *call, "completed"),
    ]
    assert events[0]["response"]["output"] == [] and events[0]["response"]["status"] == "in_progress"
    final = events[-1]["response"]
    reasoning, message, first, second = final["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "hm"}] and "encrypted_content" not in reasoning
    assert message["content"][0]["text"] == "one two "
    assert (first["call_id"], first["name"], first["arguments"]) == ("call_abcd1234", "add", '{"a":1}')
    assert first["id"] != second["id"] and {item["status"] for item in final["output"]} == {"completed"}
    for index, item in enumerate(final["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["item"]["id"] == item["id"] and own[0]["item"]["status"] == "in_progress"
        assert own[-1]["item"] == item and own[-1]["type"] == "response.output_item.done"
        assert {event["item_id"] for event in own[1:-1]} == {item["id"]}
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert deltas == done["text"] == "one two " and done["logprobs"] == []
    shapes = [{**item, "id": ""} for item in whole["output"]]
    assert shapes == [{**item, "id": ""} for item in final["output"]] and whole["status"] == "completed"
    assert whole["tools"] == [TOOL]


async def test_an_answer_that_was_cut_is_incomplete(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        events = await stream(r, {"input": "one !length", "max_output_tokens": 5})
        whole = await respond(r, {"input": "!length"})
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete" and final["status"] == "incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"} and final["max_output_tokens"] == 5
    assert final["output"][0]["status"] == "incomplete"
    assert whole["status"] == "incomplete" and whole["output"][0]["content"][0]["text"] == ""


async def test_an_error_in_a_stream_is_the_terminal_event(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        events = await stream(r, {"input": "one !error:RunnerError"})
        refused = await r.post(PATH, {"model": "m", "input": "!error:RequestError", "stream": True})
        broken = await r.post(PATH, {"model": "m", "input": "one !error:RunnerError"})
        invalid = await stream(r, {"input": "one !error:RequestError"})
    assert kinds(events)[-2:] == ["output_text.delta", "failed"]
    final = events[-1]["response"]
    assert final["status"] == "failed" and final["error"] == {"code": "server_error", "message": "scripted error"}
    assert final["output"][0]["content"][0]["text"] == "one " and final["output"][0]["status"] == "incomplete"
    assert refused.status_code == 400 and refused.json()["error"]["message"] == "scripted error"
    assert broken.status_code == 500 and broken.json()["error"]["type"] == "api_error"
    assert invalid[-1]["response"]["error"]["code"] == "invalid_prompt"


async def test_items_become_messages(running: Running, add_model: Add) -> None:
    add_model(jinja=BOTH_JINJA)
    items = [
        {"role": "developer", "content": "briefly"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"b":1,"a":2}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "42"}]},
        {"type": "function_call_output", "call_id": "c1", "output": "43"},
        {"type": "reasoning", "summary": [], "encrypted_content": "so"},
        {"type": "function_call", "call_id": "c3", "name": "f", "arguments": ""},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "then"}]},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "!request"},
    ]
    async with running() as r:
        asked = await asked_of_runner(r, {"input": items, "instructions": "be kind"})
    calls = [
        {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"b": 1, "a": 2}}},
        {"id": "c2", "function": {"index": 0, "name": "g", "arguments": {}}},
    ]
    third = {"id": "c3", "function": {"index": 0, "name": "f", "arguments": {}}}
    assert asked["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "system", "content": "briefly"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "let me see", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "42", "tool_name": "g", "tool_call_id": "c2"},
        {"role": "tool", "content": "43", "tool_name": "f", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [third]},
        {"role": "assistant", "content": "a", "thinking": "then"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "!request"},
    ]


async def test_what_reaches_the_runner(running: Running, add_model: Add) -> None:
    add_model(jinja=BOTH_JINJA)
    schema = {"type": "object", "properties": {}}
    async with running() as r:
        plain = await asked_of_runner(r, {"tools": [TOOL, {"type": "web_search"}]})
        assert plain["messages"] == [{"role": "user", "content": "!request"}] and plain["tools"] == [NATIVE_TOOL]
        assert (
            plain["truncate"] is None
            and plain["shift"] is False
            and plain["logprobs"] is False
            and plain["think"] is None
        )
        assert plain["options"]["temperature"] == plain["options"]["top_p"] == 1.0
        asked = await asked_of_runner(
            r,
            {
                "tools": [TOOL],
                "tool_choice": {"type": "function", "name": "add"},
                "parallel_tool_calls": False,
                "max_output_tokens": 9,
                "temperature": 0.5,
                "reasoning": {"effort": "low"},
                "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}},
                "truncation": "disabled",
                "include": ["message.output_text.logprobs"],
                "top_logprobs": 3,
                "num_ctx": 64,
                "options": {"top_k": 5},
            },
        )
        assert asked["tool_choice"] == {"name": "add"} and asked["parallel_tool_calls"] is False
        options = asked["options"]
        assert (options["num_predict"], options["temperature"], options["num_ctx"], options["top_k"]) == (9, 0.5, 64, 5)
        assert asked["think"] == "low" and asked["format"] == schema and asked["truncate"] is False
        assert asked["logprobs"] is True and asked["top_logprobs"] == 3


async def test_logprobs_and_thoughts_where_included(running: Running, add_model: Add) -> None:
    add_model(jinja=BOTH_JINJA)
    include = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    async with running() as r:
        events = await stream(r, {"input": "!think:hm !logprobs", "include": include})
    reasoning, message = events[-1]["response"]["output"]
    (entry,) = message["content"][0]["logprobs"]
    (delta,) = [event for event in events if event["type"] == "response.output_text.delta"]
    assert reasoning["encrypted_content"] == "hm" and entry["token"] == "a" and delta["logprobs"] == [entry]


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({}, "input", "expected a string or an array of items, not null"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": [1]}, "input[0]", "expected an object"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "function_call_output, reasoning"),
        ({"input": [{"role": "user"}]}, "input[0].content", "not null"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type", "input_file"),
        ({"input": [{"type": "function_call", "arguments": "{}"}]}, "input[0].name", "is required"),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": "{"}]},
            "input[0].arguments",
            "invalid tool call arguments",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", "not null"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary", "expected an array"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
        ({"input": "x", "conversation": "conv_1"}, "conversation", "nothing is stored"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt", "nothing is stored"),
        ({"input": "x", "background": True}, "background", "nothing is stored"),
        ({"input": "x", "truncation": "some"}, "truncation", 'expected auto or disabled, not "some"'),
        ({"input": "x", "tools": [{"type": "custom", "name": "f"}]}, "tools[0].type", 'not "custom"'),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type", 'not "xml"'),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema", "not null"),
        ({"input": "x", "reasoning": {"effort": "huge"}}, "reasoning.effort", 'not "huge"'),
        ({"input": "x", "max_output_tokens": "9"}, "max_output_tokens", "of type int"),
        ({"input": "x", "top_logprobs": 30}, None, "top_logprobs must be between 0 and 20"),
    ],
)
async def test_what_is_refused(
    running: Running, add_model: Add, body: dict[str, Any], param: str | None, text: str
) -> None:
    add_model()
    async with running() as r:
        response = await r.post(PATH, {"model": "m", "stream": True, **body})
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == param and text in error["message"]

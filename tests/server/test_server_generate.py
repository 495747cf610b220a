"""/api/generate and /api/chat: shapes of answers, what the runner is asked, loading and unloading."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
TOOLS_JINJA = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
THINK_JINJA = "<think></think>{% for m in messages %}{{ m.content }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


async def asked_of_runner(r: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The request as the runner got it: the prompt `!request` makes the fake runner send it back."""
    answer = (await r.post(path, {**body, "stream": False})).json()
    text = answer["response"] if path == "/api/generate" else answer["message"]["content"]
    return dict(json.loads(text))


async def test_generate_stream(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        *chunks, final = await r.lines("/api/generate", {"model": "M:latest", "prompt": "one two"})
    assert [chunk["response"] for chunk in chunks] == ["one ", "two "]
    for chunk in chunks:
        assert set(chunk) == {"model", "created_at", "response", "done"} and chunk["done"] is False
        assert chunk["model"] == "M:latest" and TIME.fullmatch(chunk["created_at"])
    assert final["response"] == "" and final["done"] is True and final["done_reason"] == "stop"
    assert final["context"] == [1, 2, 3]
    assert final["prompt_eval_count"] == 2 and final["eval_count"] == 2 and final["prompt_eval_duration"] == 1000
    for key in ("total_duration", "load_duration", "eval_duration"):
        assert isinstance(final[key], int) and final[key] > 0
    assert final["total_duration"] >= final["load_duration"]


async def test_generate_whole(running: Running, add_model: Add) -> None:
    add_model(jinja=THINK_JINJA)
    async with running() as r:
        body = {"model": "m", "prompt": "!think:hm a !logprobs b !length", "stream": False, "logprobs": True}
        response = await r.post("/api/generate", body)
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    whole = response.json()
    assert whole["response"] == "a ab " and whole["thinking"] == "hm" and whole["done_reason"] == "length"
    (entry,) = whole["logprobs"]
    assert entry["token"] == "a" and entry["top_logprobs"][0]["logprob"] is None and whole["eval_count"] == 5


async def test_chat_stream_and_whole(running: Running, add_model: Add) -> None:
    add_model(jinja=TOOLS_JINJA)
    body = {"model": "m", "messages": [{"role": "User", "content": "hi !call there"}], "tools": [TOOL]}
    async with running() as r:
        *chunks, final = await r.lines("/api/chat", body)
        whole = (await r.post("/api/chat", {**body, "stream": False})).json()
    assert [chunk["message"]["content"] for chunk in chunks] == ["hi ", "", "there "]
    assert chunks[0]["message"] == {"role": "assistant", "content": "hi "}
    assert final["message"] == {"role": "assistant", "content": ""} and final["done_reason"] == "stop"
    assert "context" not in final and "response" not in final
    (call,) = whole["message"]["tool_calls"]
    assert call["function"] == {"index": 0, "name": "add", "arguments": {"a": 1}} and call["id"] == "call_abcd1234"
    assert whole["message"]["content"] == "hi there " and whole["done"] is True


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_load_and_unload_are_single_objects(running: Running, add_model: Add, path: str) -> None:
    add_model()
    async with running() as r:
        for body in ({"model": "m"}, {"model": "m", "stream": True, "messages": [], "prompt": ""}):
            response = await r.post(path, body)
            answer = response.json()
            assert answer["done"] is True and answer["done_reason"] == "load"
            assert set(answer) == {"model", "created_at", "done", "done_reason"} | (
                {"response"} if path == "/api/generate" else {"message"}
            )
            assert len((await r.http.get("/api/ps")).json()["models"]) == 1
        answer = (await r.post(path, {"model": "m", "keep_alive": 0})).json()
        assert answer["done_reason"] == "unload" and answer["done"] is True
        assert (await r.http.get("/api/ps")).json() == {"models": []}


async def test_system_and_history_of_the_model(running: Running, add_model: Add) -> None:
    history = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    add_model(system="be brief", messages=history, params={"temperature": 0.5, "stop": ["x"], "num_ctx": 64})
    async with running() as r:
        asked = await asked_of_runner(r, "/api/generate", {"model": "m", "prompt": "!request"})
        assert asked["system"] == "be brief" and asked["messages"] == history and asked["kind"] == "generate"
        assert asked["options"]["temperature"] == 0.5 and asked["options"]["stop"] == ["x"]
        asked = await asked_of_runner(
            r,
            "/api/generate",
            {"model": "m", "prompt": "!request", "system": "other", "context": [1], "options": {"temperature": 1}},
        )
        assert asked["system"] == "other" and asked["messages"] == [] and asked["context"] == [1]
        assert asked["options"]["temperature"] == 1.0 and asked["options"]["stop"] == ["x"]
        asked = await asked_of_runner(r, "/api/generate", {"model": "m", "prompt": "!request", "raw": True})
        assert asked["system"] is None and asked["messages"] == [] and asked["raw"] is True

        turn = {"role": "user", "content": "!request"}
        asked = await asked_of_runner(r, "/api/chat", {"model": "m", "messages": [turn]})
        assert asked["messages"] == [{"role": "system", "content": "be brief"}, *history, turn]
        own = {"role": "SYSTEM", "content": "mine"}
        asked = await asked_of_runner(r, "/api/chat", {"model": "m", "messages": [own, turn]})
        assert asked["messages"] == [*history, {"role": "system", "content": "mine"}, turn]


async def test_what_passes_through(running: Running, add_model: Add) -> None:
    add_model(jinja=TOOLS_JINJA + THINK_JINJA)
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    messages = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": 2}}}],
        },
        {"role": "tool", "content": "42", "tool_name": "f", "tool_call_id": "call_1", "extra": 1},
        {"role": "user", "content": "!request"},
    ]
    body = {
        "MODEL": "m",
        "messages": messages,
        "tools": [TOOL],
        "think": "high",
        "format": schema,
        "truncate": False,
        "shift": False,
        "logprobs": True,
        "top_logprobs": 3,
        "unknown_field": {"x": 1},
        "options": {"seed": 7, "num_predict": 5.0, "no_such": True, "top_k": None, "dry_multiplier": 0.8},
        "keep_alive": None,
    }
    async with running() as r:
        asked = await asked_of_runner(r, "/api/chat", body)
    assert asked["tools"] == [TOOL] and asked["think"] == "high" and list(asked["format"]["properties"]) == ["z", "a"]
    assert asked["truncate"] is False and asked["shift"] is False
    assert asked["logprobs"] is True and asked["top_logprobs"] == 3
    options = asked["options"]
    assert (options["seed"], options["num_predict"], options["top_k"]) == (7, 5, 40)
    assert options["dry_multiplier"] == 0.8 and "no_such" not in options
    call, result, _ = asked["messages"]
    assert call["content"] == "" and call["tool_calls"][0]["function"]["arguments"] == {"b": 1, "a": 2}
    assert result == {"role": "tool", "content": "42", "tool_name": "f", "tool_call_id": "call_1"}


@pytest.mark.parametrize("value", [None, "", "json", {}, {"type": "object"}])
async def test_formats(running: Running, add_model: Add, value: Any) -> None:
    add_model()
    async with running() as r:
        asked = await asked_of_runner(r, "/api/generate", {"model": "m", "prompt": "!request", "format": value})
    assert asked["format"] == (None if value == "" else value)


async def test_debug_render_only(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        body = {"model": "m", "prompt": "text", "_debug_render_only": True, "stream": False}
        assert (await r.post("/api/generate", body)).json()["_debug_info"] == {"rendered_template": "text"}


async def test_the_loaded_model_decides_whether_it_inserts(running: Running, add_model: Add) -> None:
    add_model(params={"fake": {"capabilities": ["completion", "insert"]}})
    async with running() as r:
        asked = await asked_of_runner(r, "/api/generate", {"model": "m", "prompt": "!request", "suffix": "tail"})
        assert asked["suffix"] == "tail" and asked["system"] is None
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
        assert (await r.post("/api/chat", body)).status_code == 400


async def test_error_before_the_first_record_has_a_status(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        response = await r.post("/api/generate", {"model": "m", "prompt": "!error:ContextLengthError"})
        assert (response.status_code, response.json()) == (400, {"error": "scripted error", "hint": "try less"})
        response = await r.post("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "!crash"}]})
        assert response.status_code == 500
        assert response.json()["error"].startswith("model runner has unexpectedly stopped, this may be due to")


@pytest.mark.parametrize("how", ["!error:RunnerError", "!crash", "!exit"])
async def test_error_after_the_first_record_is_the_last_line(running: Running, add_model: Add, how: str) -> None:
    add_model()
    async with running() as r:
        *chunks, final = await r.lines("/api/generate", {"model": "m", "prompt": f"a b {how}"})
        assert [chunk["response"] for chunk in chunks] == ["a ", "b "]
        assert final["error"] and "done" not in final
        whole = await r.post("/api/generate", {"model": "m", "prompt": f"a b {how}", "stream": False})
        assert whole.status_code == 500 and whole.json()["error"]
        assert (await r.post("/api/generate", {"model": "m", "prompt": "x", "stream": False})).json()[
            "response"
        ] == "x "


async def test_a_failing_load(running: Running, add_model: Add) -> None:
    add_model(params={"fake": {"load": "fail"}})
    async with running() as r:
        response = await r.post("/api/generate", {"model": "m", "prompt": "x"})
        assert response.status_code == 500
        assert response.json() == {"error": 'unsupported architecture: "foo"', "hint": "pick another model"}


async def test_queue_overflow_is_503(running: Running, add_model: Add) -> None:
    add_model()
    async with running(scheduler={"max_queue": 2}, num_parallel=1) as r:
        await r.post("/api/generate", {"model": "m"})
        body = {"model": "m", "prompt": "!sleep:0.2 x", "stream": False}
        responses = await asyncio.gather(*(r.post("/api/generate", body) for _ in range(6)))
        assert sorted(response.status_code for response in responses) == [200] * 3 + [503] * 3
        texts = {response.json()["error"] for response in responses if response.status_code == 503}
        assert texts == {"server busy, please try again.  maximum pending requests exceeded"}


async def test_a_context_that_was_cut_is_reported(running: Running, add_model: Add) -> None:
    add_model(params={"fake": {"n_ctx_train": 512}})
    async with running() as r:
        body = {"model": "m", "prompt": "x", "stream": False, "options": {"num_ctx": 2048}}
        assert (await r.post("/api/generate", body)).json()["context_length"] == 512
        assert "context_length" not in (await r.post("/api/generate", {**body, "options": {}})).json()


async def test_load_reports_progress(running: Running, add_model: Add) -> None:
    add_model(params={"fake": {"load_steps": 3, "load_delay_s": 0.01}})
    async with running() as r:
        *progress, final = await r.lines("/api/load", {"model": "m", "options": {"num_ctx": 128}})
        assert progress == [{"status": "compiling kernels", "total": 3, "completed": n} for n in (1, 2, 3)]
        assert final == {"status": "success", "context_length": 128, "memory": 1000}
        assert await r.lines("/api/load", {"model": "m"}) != []
        add_model("broken", params={"fake": {"load": "crash"}})
    async with running() as r:
        response = await r.post("/api/load", {"model": "broken"})
        assert response.status_code in (200, 500) and "error" in response.text


async def test_tokenize(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        assert (await r.post("/api/tokenize", {"model": "m", "text": "ab"})).json()["tokens"] == [97, 98]
        assert (await r.post("/api/detokenize", {"model": "m", "tokens": [97, 98]})).json()["text"] == "ab"
        assert (await r.post("/api/tokenize", {"model": "m", "text": ""})).json()["tokens"] == []
        for path, needed in (("/api/tokenize", "text"), ("/api/detokenize", "tokens")):
            response = await r.post(path, {"model": "m", "content": "ab"})
            assert (response.status_code, response.json()) == (400, {"error": f"{needed} is required"})

"""What older clients send without meaning it, and what is refused by name."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]
Add = Callable[..., None]

PLAIN = {"model": "m", "prompt": "one two", "stream": False, "options": {"num_predict": 2}}


async def test_empty_lists_are_lists(running: Running, add_model: Add) -> None:
    async with running() as r:
        for _ in range(2):
            for path, key in (("/api/tags", "models"), ("/api/ps", "models"), ("/v1/models", "data")):
                response = await r.http.get(path)
                assert response.status_code == 200 and response.json()[key] == []
            assert (await r.http.get("/v1/models")).json()["object"] == "list"
            add_model("m")
            assert (await r.post("/api/delete", {"model": "m"}, "DELETE")).status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"format": None},
        {"format": ""},
        {"options": {"num_predict": 2, "tfs_z": 1.0, "no_such_option": True}},
        {"options": {"num_predict": 2, "temperature": 0}},
        {"options": {"num_predict": 2.0, "stop": None, "seed": None}},
        {"suffix": "", "system": "", "template": "", "context": [], "images": [], "raw": None, "think": None},
    ],
)
async def test_what_says_nothing_changes_nothing(running: Running, add_model: Add, more: dict[str, Any]) -> None:
    add_model()
    async with running() as r:
        expected = (await r.post("/api/generate", PLAIN)).json()["response"]
        response = await r.post("/api/generate", {**PLAIN, **more})
        assert response.status_code == 200 and response.json()["response"] == expected == "one two "


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"options": {"stop": "\n\n"}}, ("stop", "array")),
        ({"options": {"stop": [1]}}, ("stop", "array of strings")),
        ({"format": "xml"}, ("format", "xml")),
        ({"options": {"temperature": "hot"}}, ("temperature", "float32")),
        ({"keep_alive": "soon"}, ("keep_alive", "soon")),
    ],
)
async def test_what_is_wrong_is_named(
    running: Running, add_model: Add, more: dict[str, Any], words: tuple[str, ...]
) -> None:
    add_model()
    async with running() as r:
        response = await r.post("/api/generate", {**PLAIN, **more})
        assert response.status_code == 400 and all(word in response.json()["error"] for word in words)
        assert (await r.post("/api/generate", PLAIN)).status_code == 200


@pytest.mark.parametrize("stop", ["B", ["B"]])
async def test_stop_in_both_of_openais_forms(running: Running, add_model: Add, stop: Any) -> None:
    add_model()
    async with running() as r:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stop": stop}
        assert (await r.post("/v1/chat/completions", body)).status_code == 200


async def test_results_of_tools_are_told_by_the_id_of_their_call(running: Running, add_model: Add) -> None:
    add_model(jinja="{{ tools }}{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}")
    call = {"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c1", "tool_name": "own", "content": "3"},
        {"role": "tool", "tool_call_id": "c9", "content": "4"},
        {"role": "user", "content": "!request"},
    ]
    async with running() as r:
        answer = (await r.post("/api/chat", {"model": "m", "messages": messages, "stream": False})).json()
    told = json.loads(answer["message"]["content"])["messages"][2:5]
    assert [message.get("tool_name") for message in told] == ["add", "own", None]

"""What an answer says of a prompt: what it lost, how much of it was known, how far it is; in every dialect."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.anyio
Add = Callable[..., None]
Running = Any

LOST = {"messages": 3, "tokens": 512, "shifted": 0}
TOLD = "messages=3, tokens=512"
HEADER = "x-localllm-truncated"
SCRIPT = "one !lost:3,512 !cached:2"


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def body_for(path: str, text: str, **more: Any) -> dict[str, Any]:
    prompt = {"prompt": text} if "generate" in path or path == "/v1/completions" else {"messages": said(text)}
    prompt = {"input": text} if path == "/v1/responses" else prompt
    limit = {"max_tokens": 9} if path == "/v1/messages" else {}
    return {"model": "m", **prompt, **limit, **more}


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{"))]
    return [json.loads(line) for line in lines if line != "[DONE]"]


PATHS = ["/api/generate", "/api/chat", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_prompt_lost_is_told(running: Running, add_model: Add, path: str, stream: bool) -> None:
    add_model()
    async with running() as r:
        response = await r.post(path, body_for(path, SCRIPT, stream=stream))
        assert response.headers[HEADER] == TOLD
        found = [value for event in events_of(response.text) for value in values_of(event, "truncated")]
        assert found and all(value == LOST for value in found)
        plain = await r.post(path, body_for(path, "one", stream=stream))
        assert HEADER not in plain.headers and "truncated" not in plain.text


def values_of(value: Any, name: str) -> list[Any]:
    """The values of all fields of this name, however deep."""
    if isinstance(value, list):
        return [found for item in value for found in values_of(item, name)]
    if not isinstance(value, dict):
        return []
    return [*([value[name]] if name in value else []), *values_of(list(value.values()), name)]


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("/api/generate", "prompt_eval_cached_count", 2),
        ("/api/chat", "prompt_eval_cached_count", 2),
        ("/v1/chat/completions", "cached_tokens", 2),
        ("/v1/completions", "cached_tokens", 2),
        ("/v1/responses", "cached_tokens", 2),
        ("/v1/messages", "cache_read_input_tokens", 2),
        ("/v1/messages", "input_tokens", 1),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_the_cache_are_told(
    running: Running, add_model: Add, path: str, name: str, expected: int, stream: bool
) -> None:
    add_model()
    usage = {"stream_options": {"include_usage": True}} if path.endswith("completions") else {}
    async with running() as r:
        response = await r.post(path, body_for(path, SCRIPT, stream=stream, **usage))
    found = [value for event in events_of(response.text) for value in values_of(event, name)]
    assert found and set(found) == {expected}


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_progress_in_ollamas_streams(running: Running, add_model: Add, path: str) -> None:
    add_model()
    async with running() as r:
        *news, piece, last = await r.lines(path, body_for(path, SCRIPT, progress=True))
        assert [record["progress"] for record in news] == [
            {"total": 3, "cached": 2, "processed": 2, "time_ms": 0.0},
            {"total": 3, "cached": 2, "processed": 3, "time_ms": 1.5},
        ]
        for record in news:
            text = record["response"] if "response" in record else record["message"]["content"]
            assert text == "" and record["done"] is False and record["truncated"] == LOST
        assert "progress" not in piece and last["done"] is True
        for quiet in ({"progress": True, "stream": False}, {"progress": False}, {}):
            assert "progress" not in (await r.post(path, body_for(path, "one", **quiet))).text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("name", ["progress", "return_progress"])
async def test_progress_in_openais_streams(running: Running, add_model: Add, path: str, name: str) -> None:
    add_model()
    async with running() as r:
        response = await r.post(path, body_for(path, SCRIPT, stream=True, **{name: True}))
        first, second, *rest = events_of(response.text)
        assert first["prompt_progress"] == {"total": 3, "cache": 2, "processed": 2, "time_ms": 0.0}
        assert second["prompt_progress"]["processed"] == 3
        assert all(len(event["choices"]) == 1 and "prompt_progress" not in event for event in rest)
        if "chat" in path:
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert second["choices"][0]["delta"] == {}
        for quiet in ({name: True}, {"stream": True}):
            assert "prompt_progress" not in (await r.post(path, body_for(path, "one", **quiet))).text


@pytest.mark.parametrize("path", PATHS)
async def test_what_of_cutting_and_shifting_is_allowed(running: Running, add_model: Add, path: str) -> None:
    add_model()
    async with running() as r:

        async def request_of(**more: Any) -> dict[str, Any]:
            return requested((await r.post(path, body_for(path, "!request", stream=False, **more))).json())

        absent = await request_of()
        assert absent["truncate"] is (False if path == "/v1/messages" else None)
        assert absent["shift"] is path.startswith("/api")
        asked = await request_of(truncate=True, shift=True)
        assert asked["truncate"] is True and asked["shift"] is True
        refused = await request_of(truncate=False, shift=False)
        assert refused["truncate"] is False and refused["shift"] is False


def requested(answer: dict[str, Any]) -> dict[str, Any]:
    """The runner's request, which the fake runner answers with."""
    texts = [text for name in ("response", "content", "text") for text in values_of(answer, name)]
    (text,) = (text for text in texts if isinstance(text, str) and text.startswith("{"))
    request: dict[str, Any] = json.loads(text)
    return request


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/embed", {"input": ["a", "!lost:7"]}),
        ("/api/embeddings", {"prompt": "!lost:7"}),
        ("/v1/embeddings", {"input": ["!lost:7"]}),
        ("/api/rerank", {"query": "q", "documents": ["!lost:7"]}),
    ],
)
async def test_what_inputs_lost_is_told(running: Running, add_model: Add, path: str, body: dict[str, Any]) -> None:
    add_model()
    async with running() as r:
        response = await r.post(path, {"model": "m", **body})
        assert response.status_code == 200 and response.headers[HEADER] == "inputs=1, tokens=7"
        assert response.json()["truncated"] == {"inputs": 1, "tokens": 7}
        texts = json.loads(json.dumps({"model": "m", **body}).replace("!lost:7", "b"))
        plain = await r.post(path, texts)
        assert HEADER not in plain.headers and "truncated" not in plain.json()


async def test_web_pages_may_read_the_header(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        headers = {"Origin": "http://localhost:3000"}
        response = await r.http.post("/api/chat", json=body_for("/api/chat", SCRIPT), headers=headers)
        assert response.headers["access-control-expose-headers"].lower() == HEADER

"""The error matrix: statuses, texts and the order of checks, as Ollama's clients see them."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import localllm

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]

MATRIX = [
    # path, body, status, text
    ("/api/generate", {}, 404, "model '' not found"),
    ("/api/generate", {"model": None, "prompt": "x"}, 404, "model '' not found"),
    ("/api/generate", {"model": "bad name!"}, 400, "invalid model name"),
    ("/api/generate", {"model": "nope"}, 404, "model 'nope' not found"),
    ("/api/generate", {"model": "nope:7b", "prompt": "x"}, 404, "model 'nope:7b' not found"),
    ("/api/chat", {}, 400, "model is required"),
    ("/api/chat", {"model": "a/b/c/d"}, 400, "invalid model name"),
    ("/api/chat", {"model": "nope", "messages": []}, 404, "model 'nope' not found"),
    ("/api/show", {}, 400, "model is required"),
    ("/api/show", {"model": "bad name!"}, 400, "invalid model name"),
    ("/api/show", {"name": "nope"}, 404, "model 'nope:latest' not found"),
    ("/api/copy", {}, 400, 'source "" is invalid'),
    ("/api/copy", {"source": "x y", "destination": "b"}, 400, 'source "x y" is invalid'),
    ("/api/copy", {"source": "m", "destination": "x y"}, 400, 'destination "x y" is invalid'),
    ("/api/copy", {"source": "nope", "destination": "b"}, 404, 'model "nope" not found'),
    ("/api/delete", {}, 400, "model is required"),
    ("/api/delete", {"model": "x y"}, 400, 'name "x y" is invalid'),
    ("/api/delete", {"name": "nope"}, 404, "model 'nope' not found"),
    ("/api/pull", {}, 400, "invalid model name"),
    ("/api/load", {}, 400, "model is required"),
    ("/api/load", {"model": "nope"}, 404, "model 'nope' not found"),
    ("/api/generate", {"model": "m", "top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
    ("/api/chat", {"model": "nope", "top_logprobs": -1}, 400, "top_logprobs must be between 0 and 20"),
    (
        "/api/generate",
        {"model": "m", "prompt": "x", "raw": True, "system": "s"},
        400,
        "raw mode does not support template, system, or context",
    ),
    (
        "/api/generate",
        {"model": "m", "prompt": "x", "suffix": "y"},
        400,
        "registry.ollama.ai/library/m:latest does not support insert",
    ),
    (
        "/api/chat",
        {"model": "M", "messages": [{"role": "user"}], "tools": [{"function": {"name": "f"}}]},
        400,
        "registry.ollama.ai/library/m:latest does not support tools",
    ),
    ("/api/generate", {"model": "m", "prompt": "x", "think": "low"}, 400, '"m" does not support thinking'),
    ("/api/chat", {"model": "m", "messages": [{"role": "user"}], "think": True}, 400, '"m" does not support thinking'),
    (
        "/api/chat",
        {"model": "m", "think": "x"},
        400,
        'invalid think value: "x" (must be "high", "medium", "low", "max", true, or false)',
    ),
    ("/api/generate", {"model": "bert", "prompt": "x"}, 400, '"bert" does not support generate'),
    ("/api/chat", {"model": "bert", "messages": [{"role": "user"}]}, 400, '"bert" does not support chat'),
    (
        "/api/generate",
        {"model": "m", "prompt": "x", "format": "xml"},
        400,
        'invalid format: "xml"; expected "json" or a valid JSON Schema object',
    ),
    (
        "/api/generate",
        {"model": "m", "prompt": "x", "options": {"num_ctx": "8"}},
        400,
        'option "num_ctx" must be of type integer',
    ),
    ("/api/generate", {"model": "m", "options": {"stop": "\n"}}, 400, 'option "stop" must be of type array'),
    ("/api/generate", {"model": "m", "prompt": "x", "images": ["aGk="]}, 400, '"m" does not support images'),
    (
        "/api/generate",
        {"model": "m", "images": ["data:image/png;base64,aGk="]},
        400,
        "illegal base64 data at input byte 4",
    ),
    ("/api/generate", {"model": "m", "images": ["aGkx!"]}, 400, "illegal base64 data at input byte 4"),
    ("/api/generate", {"model": "m", "images": ["aGk"]}, 400, "illegal base64 data at input byte 0"),
    ("/api/generate", b"", 400, "missing request body"),
    ("/api/chat", b"  \n", 400, "missing request body"),
    ("/api/show", b"x", 400, "invalid character 'x' looking for beginning of value"),
    ("/api/pull", b'{"model":', 400, "unexpected EOF"),
    ("/api/generate", b'{"model":"m",}', 400, "invalid character '}' looking for beginning of object key string"),
    (
        "/api/generate",
        {"model": 3},
        400,
        "json: cannot unmarshal number into Go struct field GenerateRequest.model of type string",
    ),
    (
        "/api/chat",
        {"model": "m", "messages": "hi"},
        400,
        "json: cannot unmarshal string into Go struct field ChatRequest.messages of type []api.Message",
    ),
    (
        "/api/chat",
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text"}]}]},
        400,
        "json: cannot unmarshal array into Go struct field ChatRequest.messages.content of type string",
    ),
    (
        "/api/generate",
        {"model": "m", "stream": "yes"},
        400,
        "json: cannot unmarshal string into Go struct field GenerateRequest.stream of type bool",
    ),
    (
        "/api/generate",
        {"model": "m", "context": [1.5]},
        400,
        "json: cannot unmarshal number 1.5 into Go struct field GenerateRequest.context of type int",
    ),
    ("/api/generate", [], 400, "json: cannot unmarshal array into Go value of type api.GenerateRequest"),
]


@pytest.mark.parametrize(("path", "body", "status", "text"), MATRIX)
async def test_matrix(running: Running, add_model: Add, path: str, body: Any, status: int, text: str) -> None:
    add_model("m")
    if "bert" in str(body):
        add_model("bert", kind="bert")
    async with running() as r:
        response = await r.post(path, body, "DELETE" if path == "/api/delete" else "POST")
        assert (response.status_code, response.json()["error"]) == (status, text)
        assert response.headers["content-type"].startswith("application/json")


async def test_paths_and_methods(running: Running) -> None:
    async with running() as r:
        for method in ("GET", "HEAD"):
            assert (await r.http.request(method, "/")).status_code == 200
            assert (await r.http.request(method, "/api/version")).status_code == 200
        assert (await r.http.get("/")).text == "Ollama is running"
        answer = (await r.http.get("/api/version")).json()
        assert answer["localllm"] == localllm.__version__
        assert tuple(map(int, answer["version"].split("."))) >= (0, 6, 4), "clients ask for this much of Ollama's API"
        for path in ("/nope", "/api/nope"):
            response = await r.http.post(path)
            assert (response.status_code, response.text) == (404, "404 page not found")
        response = await r.http.get("/api/generate")
        assert (response.status_code, response.text) == (405, "405 method not allowed")


async def test_an_unforeseen_exception_is_a_json_500(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as r:
        monkeypatch.setattr(r.daemon.store, "models", lambda: 1 / 0)
        for path, error in (
            ("/api/tags", "internal error: ZeroDivisionError"),
            ("/v1/models", {"message": "internal error: ZeroDivisionError", "type": "api_error"}),
        ):
            caplog.clear()
            response = await r.http.get(path, headers={"Origin": "http://localhost:3000"})
            assert response.status_code == 500
            told = response.json()["error"]
            assert told == error if isinstance(error, str) else error.items() <= told.items()
            assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
            assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
                "unexpected ZeroDivisionError"
            ]


async def test_blobs(running: Running, store: Any) -> None:
    digest, _ = store.blobs.put(b"hello")
    async with running() as r:
        assert (await r.http.head(f"/api/blobs/{digest}")).status_code == 200
        assert (await r.http.head(f"/api/blobs/{digest.replace(':', '-')}")).status_code == 200
        assert (await r.http.head(f"/api/blobs/sha256:{'0' * 64}")).status_code == 404
        assert (await r.http.head("/api/blobs/nonsense")).status_code == 400


async def test_a_damaged_store_is_an_error_not_a_crash(running: Running, add_model: Add, store: Any) -> None:
    add_model("m")
    for blob in store.blobs.directory.glob("sha256-*"):
        if blob.stat().st_size > 10_000:
            blob.unlink()
    async with running() as r:
        response = await r.post("/api/generate", {"model": "m", "prompt": "x"})
        assert response.status_code == 404
        assert response.json()["error"] == 'model "m" not found, try pulling it first'
        assert "missing" in response.json()["hint"]


async def test_a_body_beyond_the_limit_is_not_read_to_its_end(running: Running) -> None:
    n_sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal n_sent
        while n_sent < 1_000_000:
            n_sent += 100
            yield b" " * 100

    async with running(max_body_bytes=1000) as r:
        response = await r.http.post("/api/chat", content=endless())
        assert response.status_code == 413
        assert response.json() == {"error": "request body too large: the limit is 1000 bytes"}
        assert n_sent < 2000
        assert (await r.post("/api/chat", b" " * 998 + b"{}")).json() == {"error": "model is required"}


async def test_a_compressed_body_is_refused_in_each_dialect(running: Running) -> None:
    text = 'content encoding "zstd" is not supported'
    hint = "send the body as it is, without Content-Encoding"
    kind = "invalid_request_error"
    openai = {"error": {"message": text, "type": kind, "param": None, "code": None, "hint": hint}}
    told: dict[str, dict[str, Any]] = {
        "/api/chat": {"error": text, "hint": hint},
        "/v1/messages": {"type": "error", "error": {"type": kind, "message": text, "hint": hint}},
        **dict.fromkeys(("/v1/chat/completions", "/v1/batches", "/v1/files"), openai),
    }
    async with running() as r:
        for path, body in told.items():
            response = await r.http.post(path, content=b"\x28\xb5\x2f\xfd", headers={"Content-Encoding": "zstd"})
            answer = response.json()
            answer.pop("request_id", None)
            assert (response.status_code, answer) == (415, body), path
        response = await r.http.post("/api/chat", content=b"{}", headers={"Content-Encoding": "Identity"})
        assert response.json() == {"error": "model is required"}

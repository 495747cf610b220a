"""Limits of the door: slow and large requests, many connections, deep JSON, and what the log says of all that."""

import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx
import pytest

from localllm.server import limits
from localllm.server.go_json import MAX_DEPTH, GoJSONError, parse

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]
Start = Callable[..., Any]


def connect(daemon: Any) -> socket.socket:
    host, _, port = daemon.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.settimeout(20)
    return connection


def answer(connection: socket.socket) -> bytes:
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


async def test_a_body_that_pauses(running: Running) -> None:
    async def halting() -> AsyncIterator[bytes]:
        yield b'{"model":'
        await anyio.sleep(5)
        yield b'"m"}'

    async with running(client_timeout_s=0.2) as r:
        started = time.monotonic()
        response = await r.http.post("/api/chat", content=halting())
        assert response.status_code == 408 and "paused for 0.2 s" in response.json()["error"]
        assert time.monotonic() - started < 3


async def test_a_body_that_trickles(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIN_BODY_RATE", 100)

    async def trickling(rate: int) -> AsyncIterator[bytes]:
        for _ in range(30):
            await anyio.sleep(0.05)
            yield b" " * (rate // 20)

    async with running(client_timeout_s=0.3) as r:
        assert (await r.http.post("/api/chat", content=trickling(20))).status_code == 408
        assert (await r.http.post("/api/chat", content=trickling(2000))).status_code == 400


async def test_sizes_of_bodies_and_of_files(running: Running) -> None:
    async with running(max_body_bytes=1000, max_upload_bytes=2000) as r:
        response = await r.http.post("/api/generate", content=b"x" * 1001)
        assert response.status_code == 413 and "1000 bytes" in response.json()["error"]
        assert (await r.http.post("/api/generate", content=b"x" * 1000)).status_code == 400


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_depth(opening: str, closing: str) -> None:
    n = MAX_DEPTH // opening.replace('{"a":', "{").__len__()
    parse((opening * n + "1" + closing * n).encode())
    with pytest.raises(GoJSONError, match="exceeded max depth"):
        parse((opening * (n + 1) + "1" + closing * (n + 1)).encode())
    assert len(parse(b"[" + b"[]," * 10_000 + b"[]]")) == 10_001


async def test_nothing_that_may_be_nested_ends_in_a_500(running: Running, add_model: Callable[..., None]) -> None:
    add_model()
    deep: Any = "x"
    for _ in range(MAX_DEPTH - 6):
        deep = {"properties": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    async with running() as r:
        for extra in ({"options": {"stop": deep}}, {"tools": [tool]}, {"format": deep}, {"think": deep}):
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": False, **extra}
            assert (await r.post("/api/chat", body)).status_code in (200, 400), extra.keys()


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("messages", [None], 200),
        ("messages", [1], 400),
        ("messages", [{"role": 1}], 400),
        ("messages", [{"x": {"y": None}}], 200),
        ("license", [1], 400),
        ("license", {"x": "y"}, 400),
        ("license", ["a", "b"], 200),
    ],
)
async def test_a_model_is_made_of_what_can_be_read_again(
    running: Running, add_model: Callable[..., None], field: str, value: Any, status: int
) -> None:
    add_model()
    async with running() as r:
        body = {"model": "n", "from": "m", "stream": False, field: value}
        assert (await r.post("/api/create", body)).status_code == status
        if status == 200:
            assert (await r.post("/api/show", {"model": "n"})).status_code == 200
            asked = {"model": "n", "messages": [{"role": "user", "content": "x"}], "stream": False}
            assert (await r.post("/api/chat", asked)).status_code == 200


def test_a_slow_header(start_live: Start) -> None:
    daemon = start_live(LOCALLLM_CLIENT_TIMEOUT="1s")
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: local"):
        with connect(daemon) as connection:
            connection.sendall(sent)
            started = time.monotonic()
            assert answer(connection).startswith(b"HTTP/1.1 408 ")
            assert 0.5 < time.monotonic() - started < 10
    # One that goes on asking, however slowly, is served; so is one that answers late.
    with httpx.Client(base_url=daemon.url, trust_env=False) as http:
        for _ in range(3):
            assert http.get("/").status_code == 200
            time.sleep(0.7)


def test_a_slow_second_header(start_live: Start) -> None:
    daemon = start_live(LOCALLLM_CLIENT_TIMEOUT="1s")
    with connect(daemon) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT")
        received = answer(connection)
        assert received.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 408 " in received


def test_a_slow_body_ends_the_connection(start_live: Start) -> None:
    daemon = start_live(LOCALLLM_CLIENT_TIMEOUT="1s")
    with connect(daemon) as connection:
        connection.sendall(b'POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"model"')
        assert answer(connection).startswith(b"HTTP/1.1 408 ")


def test_a_long_answer_is_not_a_slow_client(start_live: Start, add_model: Callable[..., None]) -> None:
    add_model()
    daemon = start_live(LOCALLLM_CLIENT_TIMEOUT="1s")
    with httpx.Client(base_url=daemon.url, trust_env=False, timeout=20) as http:
        body = {"model": "m", "prompt": "a !sleep:2.5 b", "stream": False}
        assert http.post("/api/generate", json=body).json()["response"] == "a b "


def test_connections(start_live: Start) -> None:
    daemon = start_live(LOCALLLM_MAX_CONNECTIONS="3")
    open_ones = [connect(daemon) for _ in range(3)]
    time.sleep(0.2)
    with connect(daemon) as one_more:
        assert answer(one_more).startswith(b"HTTP/1.1 503 ")
    for connection in open_ones:
        connection.close()
    deadline = time.monotonic() + 10
    while httpx.get(daemon.url, trust_env=False).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_log_holds_neither_prompts_nor_keys(start_live: Start, add_model: Callable[..., None]) -> None:
    add_model()
    daemon = start_live(LOCALLLM_DEBUG="1", LOCALLLM_API_KEYS="keyword")
    with httpx.Client(base_url=daemon.url, trust_env=False, timeout=20) as http:
        for headers in ({"Authorization": "Bearer keyword"}, {"x-api-key": "keyword"}, {"x-api-key": "badword"}):
            for path, body in (
                ("/api/generate", {"model": "m", "prompt": "secretword"}),
                ("/api/chat", {"model": "m", "messages": [{"role": "secretword", "content": "secretword !crash"}]}),
                ("/api/generate", {"model": "secretword", "prompt": "secretword"}),
                ("/api/tokenize", {"model": "m", "text": "secretword"}),
                ("/api/chat", {"model": "m", "messages": "secretword"}),
                ("/v1/files", {"purpose": "secretword"}),
                ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "secretword !exit"}]}),
                ("/v1/completions", {"model": "m", "prompt": ["secretword"], "stop": {"secretword": 1}}),
                ("/v1/responses", {"model": "m", "input": "secretword", "metadata": {"secretword": "secretword"}}),
                ("/v1/messages", {"model": "m", "max_tokens": 1, "system": "secretword", "messages": "secretword"}),
            ):
                http.post(path, json=body, headers=headers, params={"key": "keyword", "q": "secretword"})
            http.get("/?api_key=keyword")
            upload = {"file": ("secretword.jsonl", b'{"custom_id": "secretword", "body": {"prompt": "secretword"}}')}
            file = http.post("/v1/files", files=upload, data={"purpose": "batch"}, headers=headers).json()
            batch = {"input_file_id": file.get("id", ""), "endpoint": "/v1/chat/completions"}
            http.post("/v1/batches", json=batch, headers=headers)
    log = daemon.stop()[1]
    assert "POST /api/generate" in log
    assert not any(word in log for word in ("secretword", "keyword", "badword")), log

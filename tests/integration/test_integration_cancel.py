"""Clients that go away: while decoding, during a long prefill, while waiting, while the model loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytestmark = pytest.mark.integration
MakeModel = Callable[[str], Path]
ENDLESS = {"num_predict": -1, "ignore_eos": True}
# A prefill of this many tokens takes far longer than any test waits.
LONG_PROMPT = "a long prompt " * 7000


@pytest.fixture
def server(start_server: Callable[..., Any], gguf: MakeModel) -> Iterator[Any]:
    """A daemon that serves one request of a model at a time."""
    server = start_server()
    server.add(gguf("random"))
    yield server


def quick(server: Any, name: str = "random", **options: Any) -> float:
    """Seconds of a short request."""
    start = time.monotonic()
    body = {"model": name, "prompt": "hi", "options": {"num_predict": 3, **options}}
    assert server.post("/api/generate", body)["done"] is True
    return time.monotonic() - start


def leave(server: Any, path: str, body: dict[str, Any], after_s: float) -> None:
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(path, json=body, timeout=httpx.Timeout(10, read=after_s))


def cpu_s(server: Any) -> float:
    return sum(sum(runner.cpu_times()[:2]) for runner in server.runners())


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_while_decoding(server: Any, stream: bool) -> None:
    body = {"model": "random", "prompt": "x", "options": ENDLESS, "stream": stream}
    quick(server)
    for _ in range(3):
        if stream:
            with server.http.stream("POST", "/api/generate", json=body) as response:
                next(response.iter_lines())
        else:
            leave(server, "/api/generate", body, 0.5)
        assert quick(server) < 2
    busy = cpu_s(server)
    time.sleep(1)
    assert cpu_s(server) - busy < 0.5


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_a_long_prefill(server: Any, gguf: MakeModel, stream: bool) -> None:
    options = {"num_ctx": 131072}
    name = server.add(gguf("long"))
    quick(server, name, **options)
    body = {"model": name, "prompt": LONG_PROMPT, "options": {**ENDLESS, **options}, "stream": stream}
    for path, more in (("/api/generate", {}), ("/api/chat", {"messages": [{"role": "user", "content": LONG_PROMPT}]})):
        leave(server, path, {**body, **more}, 2.0)
        assert quick(server, name, **options) < 3
    busy = cpu_s(server)
    time.sleep(1)
    assert cpu_s(server) - busy < 0.5


def test_leaving_while_waiting_or_loading(server: Any, wait_for: Callable[..., None]) -> None:
    body = {"model": "random", "prompt": "x", "options": ENDLESS}
    leave(server, "/api/generate", body, 0.3)  # the model is being loaded
    quick(server)
    with server.http.stream("POST", "/api/generate", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        for _ in range(5):
            leave(server, "/api/generate", {**body, "stream": False}, 0.1)
        next(lines)
    assert quick(server) < 2
    assert len(server.runners()) == 1


def test_nothing_is_left_of_many_canceled_requests(start_server: Callable[..., Any], gguf: MakeModel) -> None:
    server = start_server(num_parallel="4")
    server.add(gguf("random"))
    options = {"seed": 1, "num_predict": 300, "num_ctx": 512, "ignore_eos": True}

    def text() -> str:
        answer = server.post("/api/generate", {"model": "random", "prompt": "x" * 400, "options": options})
        return str(answer["response"])

    def start_and_leave(i: int) -> None:
        body = {"model": "random", "prompt": f"{i} " * 100, "options": {**ENDLESS, "num_ctx": 512}}
        with server.http.stream("POST", "/api/generate", json=body) as response:
            for _, _ in zip(range(i % 7), response.iter_lines(), strict=False):
                pass

    expected = text()
    (runner,) = server.runners()
    memory = []
    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(start_and_leave, range(100)))
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda _: text(), range(4))) == {expected}
        memory.append(runner.memory_info().rss)
        assert psutil.Process(server.process.pid).num_fds() < 60
    assert server.runners() == [runner] and memory[-1] - memory[0] < 20 << 20

"""Keep-alive, dying and stuck runners, queues and deletion, with real runners."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytestmark = pytest.mark.integration
Model = Callable[[str], str]
StartServer = Callable[..., Any]
MakeModel = Callable[[str], Path]
YEAR_S = 365 * 86400
# More text than a test waits for: the context shifts, so that the stream lasts.
ENDLESS = {"raw": True, "prompt": "<|assistant|>", "options": {"temperature": 0, "num_predict": -1}}


def seconds_left(model: dict[str, Any]) -> float:
    expires_at = datetime.fromisoformat(model["expires_at"].replace("Z", "+00:00")[:26].rstrip("+") + "+00:00")
    return (expires_at - datetime.now(timezone.utc)).total_seconds()


def lines_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in response.iter_lines())


@pytest.mark.parametrize(
    ("keep_alive", "seconds"),
    [
        ("absent", 300),
        (None, 300),
        (-1, YEAR_S),
        (-1.5, YEAR_S),
        ("-1m", YEAR_S),
        (3600, 3600),
        ("1h30m", 5400),
        ("24h", 86400),
        (1e300, YEAR_S),
    ],
)
def test_spellings_of_keep_alive(server: Any, model: Model, keep_alive: Any, seconds: float) -> None:
    body = {"model": model("random")} | ({} if keep_alive == "absent" else {"keep_alive": keep_alive})
    answer = server.post("/api/generate", body)
    assert answer["done_reason"] == "load" and answer["response"] == ""
    left = seconds_left(server.loaded()["random"])
    assert left > YEAR_S if seconds == YEAR_S else abs(left - seconds) < 2


@pytest.mark.parametrize("keep_alive", [0, "0", "0s"])
def test_keep_alive_zero_unloads(server: Any, model: Model, keep_alive: Any) -> None:
    for path, key in (("/api/generate", "prompt"), ("/api/chat", "messages")):
        empty: dict[str, Any] = {key: None}
        server.post(path, {"model": model("random"), **empty})
        assert "random" in server.loaded()
        answer = server.post(path, {"model": "random", "keep_alive": keep_alive, **empty})
        assert answer["done_reason"] == "unload" and "random" not in server.loaded()


@pytest.mark.parametrize("keep_alive", [2, "2s"])
def test_a_short_keep_alive_runs_out(server: Any, model: Model, wait_for: Callable[..., None], keep_alive: Any) -> None:
    server.unload_all()
    server.post("/api/generate", {"model": model("random"), "keep_alive": keep_alive})
    start = time.monotonic()
    runner = server.runner_of("random")
    wait_for(lambda: "random" not in server.loaded())
    assert 1.5 < time.monotonic() - start < 4
    wait_for(lambda: not runner.is_running())


@pytest.mark.parametrize("keep_alive", ["abc", "-1", "2", True, {}, []])
def test_a_keep_alive_that_is_none(server: Any, model: Model, keep_alive: Any) -> None:
    assert "keep_alive" in server.refused("/api/generate", {"model": model("random"), "keep_alive": keep_alive}, 400)


def test_an_empty_keep_alive_is_refused_or_the_default(server: Any, model: Model) -> None:
    server.post("/api/generate", {"model": model("random")})
    response = server.http.post("/api/generate", json={"model": "random", "keep_alive": ""})
    assert response.status_code == 400 or abs(seconds_left(server.loaded()["random"]) - 300) < 2


@pytest.mark.parametrize(("value", "seconds"), [("-1", YEAR_S), ("30", 30), ("45s", 45)])
def test_keep_alive_of_the_environment(start_server: StartServer, gguf: MakeModel, value: str, seconds: float) -> None:
    server = start_server(keep_alive=value)
    server.post("/api/generate", {"model": server.add(gguf("random"))})
    left = seconds_left(server.loaded()["random"])
    assert left > YEAR_S if seconds == YEAR_S else abs(left - seconds) < 2


def test_runners_killed_during_and_between_requests(
    start_server: StartServer, gguf: MakeModel, wait_for: Callable[..., None]
) -> None:
    server = start_server()
    body = {"model": server.add(gguf("loop")), **ENDLESS}
    with server.http.stream("POST", "/api/generate", json=body) as response:
        received = []
        for line in lines_of(response):
            received.append(line)
            if len(received) == 5:
                server.runners()[0].kill()
    assert received[-1]["error"] and "done" not in received[-1]
    assert all(line["done"] is False for line in received[:-1])
    wait_for(lambda: server.loaded() == {})
    start = time.monotonic()
    short = {**body, "options": {"temperature": 0, "num_predict": 3}}
    assert server.post("/api/generate", short)["response"] == "abcdef" and time.monotonic() - start < 30

    for path, whole in (
        ("/api/generate", {**body, "stream": False}),
        ("/api/chat", {"model": "loop", "messages": [{"role": "user", "content": "x"}], "stream": False}),
    ):
        server.post("/api/generate", {"model": "loop"})
        with ThreadPoolExecutor() as pool:
            # /api/chat's prompt ends with the same token, so that this does not end either.
            answer = pool.submit(server.http.post, path, json=whole)
            wait_for(lambda: server.runners()[0].cpu_times().user > 0)
            time.sleep(0.3)
            server.runners()[0].kill()
            assert answer.result().status_code == 500 and answer.result().json()["error"]

    server.post("/api/generate", {"model": "loop"})
    server.runners()[0].kill()
    assert server.post("/api/generate", short)["response"] == "abcdef"
    wait_for(lambda: all(child.status() != psutil.STATUS_ZOMBIE for child in server.runners()))
    assert server.process.poll() is None and len(server.runners()) == 1


@pytest.mark.parametrize("busy", [False, True])
def test_a_stopped_runner_is_unloaded_in_bounded_time(
    start_server: StartServer, gguf: MakeModel, wait_for: Callable[..., None], busy: bool
) -> None:
    server = start_server()
    body = {"model": server.add(gguf("loop")), **ENDLESS}
    short = {**body, "options": {"temperature": 0, "num_predict": 3}}
    server.post("/api/generate", short)
    received: list[dict[str, Any]] = []

    def read() -> None:
        received.extend(server.lines("/api/generate", body))

    reader = threading.Thread(target=read)
    if busy:
        reader.start()
        time.sleep(0.3)
    (runner,) = server.runners()
    runner.suspend()
    start = time.monotonic()
    assert server.post("/api/generate", {"model": "loop", "keep_alive": 0})["done_reason"] == "unload"
    wait_for(lambda: server.loaded() == {}, 30)
    assert server.post("/api/generate", short)["response"] == "abcdef" and time.monotonic() - start < 30
    assert not runner.is_running()
    if busy:
        reader.join(10)
        assert received[-1]["error"]


def test_other_context_lengths_and_models_are_served_beside_a_busy_one(
    start_server: StartServer, gguf: MakeModel
) -> None:
    server = start_server(num_parallel="2", max_queue="64")
    a, b = server.add(gguf("random")), server.add(gguf("other"))

    def ask(name: str, seed: int, num_ctx: int, num_predict: int = 200) -> tuple[str, float]:
        options = {"seed": seed, "num_ctx": num_ctx, "num_predict": num_predict, "temperature": 0.8}
        start = time.monotonic()
        answer = server.post("/api/generate", {"model": name, "prompt": f"prompt {seed}", "options": options})
        return answer["response"], time.monotonic() - start

    alone = {seed: ask(a, seed, 256)[0] for seed in range(10)}
    odd_alone = ask(a, 77, 512)[0], ask(b, 77, 256)[0]
    server.unload_all()
    ask(a, 0, 256)  # loaded with the small context again
    end = time.monotonic() + 10
    slow_versions = []

    def loop(seed: int) -> list[str]:
        texts = []
        while time.monotonic() < end:
            texts.append(ask(a, seed, 256)[0])
        return texts

    def watch() -> None:
        while time.monotonic() < end:
            start = time.monotonic()
            assert server.http.get("/api/version").status_code == 200
            if (took := time.monotonic() - start) > 0.5:
                slow_versions.append(took)
            time.sleep(0.1)

    with ThreadPoolExecutor(14) as pool:
        loops = [pool.submit(loop, seed) for seed in range(10)]
        watching = pool.submit(watch)
        time.sleep(2)
        longer = pool.submit(ask, a, 77, 512)
        time.sleep(2)
        other = pool.submit(ask, b, 77, 256)
        assert (longer.result()[0], other.result()[0]) == odd_alone
        assert max(longer.result()[1], other.result()[1]) < 15
        for seed, texts in enumerate(loops):
            assert set(texts.result()) == {alone[seed]}
        watching.result()
    assert slow_versions == []


def test_a_full_queue_refuses_at_once(start_server: StartServer, gguf: MakeModel) -> None:
    server = start_server(num_parallel="1", max_queue="4")
    body = {"model": server.add(gguf("loop")), **ENDLESS, "stream": False}
    body["options"] = {"temperature": 0, "num_predict": 3000}
    server.post("/api/generate", {"model": "loop"})
    with ThreadPoolExecutor(12) as pool:
        start = time.monotonic()
        answers = [pool.submit(server.http.post, "/api/generate", json=body) for _ in range(12)]
        refused = []
        for answer in [a.result() for a in answers]:
            if answer.status_code != 200:
                refused.append(answer)
        took = time.monotonic() - start
    assert {answer.status_code for answer in refused} == {503} and len(refused) == 12 - 5
    assert all("busy" in answer.json()["error"] and answer.elapsed.total_seconds() < 2 for answer in refused)
    assert took < 60


def test_deletion_while_a_stream_runs(
    start_server: StartServer, gguf: MakeModel, wait_for: Callable[..., None]
) -> None:
    server = start_server()
    body = {"model": server.add(gguf("loop")), **ENDLESS}
    with server.http.stream("POST", "/api/generate", json=body) as response:
        lines = lines_of(response)
        next(lines)
        assert server.http.request("DELETE", "/api/delete", json={"model": "loop"}).status_code == 200
        assert server.names() == [] and next(lines)["response"]
        server.refused("/api/generate", {"model": "loop", "prompt": "x"}, 404)
        server.add(gguf("loop"))
        assert server.names() == ["loop:latest"]
        assert server.post("/api/generate", {"model": "loop", "keep_alive": 0})["done_reason"] == "unload"
        assert next(lines)["response"]
    wait_for(lambda: server.loaded() == {})
    assert server.post("/api/generate", {**body, "options": {"num_predict": 3, "temperature": 0}})["response"]


def test_a_thousand_bad_requests_do_not_delay_a_stream(server: Any, model: Model) -> None:
    options = {"temperature": 0, "num_predict": 4000}
    body = {"model": model("loop"), **ENDLESS, "options": options}
    server.post("/api/generate", {"model": "loop"})
    bad = [b'{"model":"loop","prompt":3}', b'{"model":"loop"', b'{"model":"none","prompt":"x"}', b'{"model":7}']
    gaps: list[float] = []

    def read() -> None:
        with server.http.stream("POST", "/api/generate", json=body) as response:
            before = time.monotonic()
            for _ in lines_of(response):
                gaps.append(time.monotonic() - before)
                before = time.monotonic()

    reader = threading.Thread(target=read)
    reader.start()
    with ThreadPoolExecutor(16) as pool:
        posts = [pool.submit(server.http.post, "/api/generate", content=bad[i % len(bad)]) for i in range(1000)]
        answers = [post.result() for post in posts]
    reader.join()
    assert {answer.status_code for answer in answers} == {400, 404}
    assert all(answer.json()["error"] for answer in answers)
    assert len(gaps) > 4000 and max(gaps) < 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_daemon(
    start_server: StartServer, gguf: MakeModel, wait_for: Callable[..., None], number: int
) -> None:
    server = start_server()
    server.add(gguf("random"))
    server.post("/api/generate", {"model": "random"})
    body = {"model": server.add(gguf("loop")), **ENDLESS}
    received: list[dict[str, Any]] = []

    def read() -> None:
        try:
            with server.http.stream("POST", "/api/generate", json=body) as response:
                received.extend(lines_of(response))
        except httpx.TransportError:
            received.append({"cut": True})

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: len(server.loaded()) == 2)
    time.sleep(0.5)
    children = server.runners()
    assert len(children) == 2
    start = time.monotonic()
    status = server.stop(number)
    reader.join()
    assert psutil.wait_procs(children, timeout=10)[1] == [] and time.monotonic() - start < 20
    if number == signal.SIGKILL:
        assert received[-1] == {"cut": True}
    else:
        assert status == 0 and "error" in received[-1], server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_daemon_that_ends_while_it_loads(
    start_server: StartServer, gguf: MakeModel, wait_for: Callable[..., None], number: int
) -> None:
    server = start_server()
    server.add(gguf("random"))
    thread = threading.Thread(target=_post_quietly, args=(server, {"model": "random", "prompt": "x"}))
    thread.start()
    wait_for(server.runners)
    time.sleep(0.3)
    children = server.runners()
    server.stop(number)
    thread.join()
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_client_that_never_sends_its_body_does_not_keep_the_daemon(start_server: StartServer) -> None:
    server = start_server()
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(0.3)
        assert server.http.get("/api/version").status_code == 200
        start = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - start < 20


def test_a_runner_killed_while_it_loads(
    start_server: StartServer, gguf: MakeModel, wait_for: Callable[..., None], tmp_path: Path
) -> None:
    server = start_server(cache_dir=str(tmp_path / "cold"))
    body = {"model": server.add(gguf("story")), "prompt": "x", "stream": False}
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.http.post, "/api/generate", json=body)
        wait_for(lambda: len(server.runners()) > 1, 60)
        psutil.Process(server.process.pid).children()[0].kill()
        assert answer.result().status_code == 500 and "stopped while loading" in answer.result().json()["error"]
    assert server.loaded() == {}
    assert server.post("/api/generate", body)["response"] == "Once upon a time"


def test_nothing_compiles_for_a_daemon_that_was_killed(
    start_server: StartServer, gguf: MakeModel, wait_for: Callable[..., None], tmp_path: Path
) -> None:
    server = start_server(cache_dir=str(tmp_path / "cold"))
    server.add(gguf("random"))
    thread = threading.Thread(target=_post_quietly, args=(server, {"model": "random", "prompt": "x"}))
    thread.start()
    wait_for(lambda: len(server.runners()) > 1, 60)  # the runner and those that compile for it
    children = server.runners()
    server.stop(signal.SIGKILL)
    thread.join()
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_cache_folder_that_cannot_be_written(start_server: StartServer, gguf: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = start_server(cache_dir=str(tmp_path / "file"), env={"TMPDIR": str(tmp_path)})
    answer = server.post("/api/generate", {"model": server.add(gguf("story")), "prompt": "x"})
    assert answer["response"] == "Once upon a time"
    assert "compiled kernels cannot be kept in" in server.log


def _post_quietly(server: Any, body: dict[str, Any]) -> None:
    try:
        server.http.post("/api/generate", json=body)
    except httpx.TransportError:
        return

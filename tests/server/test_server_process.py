"""The daemon as a process of its own: disconnects, signals, dying runners, settings, the official client."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import ollama
import psutil
import pytest

Start = Callable[..., Any]
Add = Callable[..., None]
ROOT = Path(__file__).parents[2]


def http(daemon: Any) -> httpx.Client:
    return httpx.Client(base_url=daemon.url, timeout=30, trust_env=False)


def runners(daemon: Any) -> list[psutil.Process]:
    return psutil.Process(daemon.process.pid).children()


def wait_for(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def lines_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in response.iter_lines())


def test_a_client_that_leaves_frees_its_place(start_live: Start, add_model: Add) -> None:
    add_model()
    daemon = start_live()
    with http(daemon) as client:
        for body in ({"model": "m", "prompt": "!forever"}, {"model": "m", "prompt": "!forever", "stream": False}):
            with pytest.raises(httpx.ReadTimeout):
                client.post("/api/generate", json={**body, "prompt": "!sleep:2 !forever"}, timeout=0.5)
            answer = client.post("/api/generate", json={"model": "m", "prompt": "next", "stream": False}).json()
            assert answer["response"] == "next "
        with client.stream("POST", "/api/generate", json={"model": "m", "prompt": "!forever"}) as response:
            assert next(lines_of(response))["response"] == "x"
        answer = client.post("/api/generate", json={"model": "m", "prompt": "next", "stream": False}).json()
        assert answer["response"] == "next "
    status, log = daemon.stop()
    assert status == 0 and "client disconnected" in log


def test_a_killed_runner(start_live: Start, add_model: Add) -> None:
    add_model()
    daemon = start_live()
    with http(daemon) as client:
        with client.stream("POST", "/api/generate", json={"model": "m", "prompt": "!forever"}) as response:
            received = []
            for line in lines_of(response):
                received.append(line)
                if len(received) == 5:
                    runners(daemon)[0].kill()
        assert set(received[-1]) >= {"error"} and "done" not in received[-1]
        start = time.monotonic()
        answer = client.post("/api/generate", json={"model": "m", "prompt": "again", "stream": False}).json()
        assert answer["response"] == "again " and time.monotonic() - start < 30

        with ThreadPoolExecutor() as pool:
            whole = pool.submit(
                client.post, "/api/generate", json={"model": "m", "prompt": "!forever", "stream": False}
            )
            time.sleep(1.0)
            runners(daemon)[0].kill()
            assert whole.result().status_code == 500 and whole.result().json()["error"]
        runners_left = [child for child in runners(daemon) if child.status() == psutil.STATUS_ZOMBIE]
        assert client.get("/api/ps").json() == {"models": []} and runners_left == []


def test_a_stopped_runner(start_live: Start, add_model: Add) -> None:
    add_model()
    daemon = start_live()
    with http(daemon) as client:
        client.post("/api/generate", json={"model": "m"})
        runners(daemon)[0].suspend()
        start = time.monotonic()
        assert client.post("/api/generate", json={"model": "m", "keep_alive": 0}).json()["done_reason"] == "unload"
        assert time.monotonic() - start < 30 and client.get("/api/ps").json() == {"models": []}
        answer = client.post("/api/generate", json={"model": "m", "prompt": "again", "stream": False}).json()
        assert answer["response"] == "again "


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_everything(start_live: Start, add_model: Add, number: int) -> None:
    add_model()
    daemon = start_live()
    received: list[dict[str, Any]] = []

    def read() -> None:
        with http(daemon) as client, client.stream("POST", "/api/generate", json=body) as response:
            received.extend(lines_of(response))

    body = {"model": "m", "prompt": "!forever"}
    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: runners(daemon))
    time.sleep(0.5)
    children = runners(daemon)
    start = time.monotonic()
    status, log = daemon.stop(number)
    reader.join()
    assert status == 0 and time.monotonic() - start < 15, log
    assert "error" in received[-1]
    assert not any(child.is_running() for child in children)


def test_runners_follow_a_killed_daemon(start_live: Start, add_model: Add) -> None:
    add_model()
    daemon = start_live()
    with http(daemon) as client:
        client.post("/api/generate", json={"model": "m"})
    children = runners(daemon)
    daemon.process.kill()
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_validation_errors_do_not_delay_a_stream(start_live: Start, add_model: Add) -> None:
    add_model()
    daemon = start_live()
    with http(daemon) as client, ThreadPoolExecutor(16) as pool:
        client.post("/api/generate", json={"model": "m"})
        script = "!sleep:0.1 x " * 20
        stream = pool.submit(client.post, "/api/generate", json={"model": "m", "prompt": script})
        start = time.monotonic()
        bad = [pool.submit(client.post, "/api/generate", content=b'{"model":"m","prompt":3}') for _ in range(200)]
        assert {answer.result().status_code for answer in bad} == {400}
        assert stream.result().status_code == 200 and time.monotonic() - start < 6


def test_the_log_holds_no_prompts(start_live: Start, add_model: Add) -> None:
    add_model()
    daemon = start_live(LOCALLLM_DEBUG="1")
    with http(daemon) as client:
        client.post("/api/generate", json={"model": "m", "prompt": "secretword", "stream": False})
        client.post("/api/chat", json={"model": "m", "messages": [{"role": "user", "content": "secretword !crash"}]})
        client.post("/api/generate", content=b'{"model":"m","prompt":"secretword')
    assert "secretword" not in daemon.stop()[1]


def test_an_address_in_use(start_live: Start) -> None:
    daemon = start_live()
    port = daemon.url.rpartition(":")[2]
    second = _serve(LOCALLLM_HOST=f"127.0.0.1:{port}")
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in second.stderr and "hint: " in second.stderr
    assert httpx.get(daemon.url, trust_env=False).text == "Ollama is running"


def test_bad_settings_are_reported_at_start() -> None:
    ended = _serve(LOCALLLM_KEEP_ALIVE="junk", LOCALLLM_NUM_PARALEL="2")
    assert ended.returncode == 1
    assert "LOCALLLM_KEEP_ALIVE='junk'" in ended.stderr
    assert "unknown environment variable: LOCALLLM_NUM_PARALEL" in ended.stderr
    assert "did you mean `LOCALLLM_NUM_PARALLEL`?" in ended.stderr


def test_a_bad_setting_of_ollamas_is_logged(start_live: Start) -> None:
    assert "OLLAMA_KEEP_ALIVE='junk'" in start_live(OLLAMA_KEEP_ALIVE="junk").stop()[1]


def test_keep_alive_of_the_environment(start_live: Start, add_model: Add) -> None:
    add_model()
    with ollama.Client(start_live(OLLAMA_KEEP_ALIVE="-1").url) as client:
        client.generate("m")
        expires_at = client.ps().models[0].expires_at
        assert expires_at is not None and expires_at.year > 2200


def _serve(**variables: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OLLAMA_", "LOCALLLM_"))}
    command = [sys.executable, "-c", "from localllm.server import serve; serve()"]
    env = {**clean, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_official_client(start_live: Start, add_model: Add) -> None:
    tools_jinja = (
        "{% if tools %}{{ tools }}{% endif %}<think></think>{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    add_model(jinja=tools_jinja, system="be brief")
    with ollama.Client(start_live().url) as client:
        use_everything(client)


def use_everything(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["m:latest"]
    shown = client.show("m")
    assert shown.modelinfo and shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion", "tools", "thinking"]

    assert client.generate("m", "one two").response == "one two "
    pieces = list(client.generate("m", "one two", stream=True))
    assert [piece.response for piece in pieces] == ["one ", "two ", ""] and pieces[-1].done_reason == "stop"
    assert pieces[-1].eval_count == 2 and pieces[-1].total_duration

    def add(a: int) -> int:
        """Add."""
        return a

    answer = client.chat("m", [{"role": "user", "content": "hi !call !think:hm"}], tools=[add], think=True)
    assert answer.message.content == "hi " and answer.message.thinking == "hm"
    assert answer.message.tool_calls and answer.message.tool_calls[0].function.arguments == {"a": 1}
    parts = list(client.chat("m", [{"role": "user", "content": "hi"}], stream=True, options={"seed": 1}))
    assert "".join(part.message.content or "" for part in parts) == "hi " and parts[-1].done

    assert [model.model for model in client.ps().models] == ["m:latest"]
    assert client.generate("m", keep_alive=0).done_reason == "unload" and client.ps().models == []
    assert client.copy("m", "n").status == "success" and client.delete("n").status == "success"
    with pytest.raises(ollama.ResponseError, match="model 'n' not found") as caught:
        client.chat("n", [{"role": "user", "content": "x"}])
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="scripted error"):
        list(client.generate("m", "a !error:RequestError", stream=True))
    with pytest.raises(ollama.ResponseError, match=r"cannot reach 127\.0\.0\.1:1"):
        list(client.pull("127.0.0.1:1/library/no-such-model", stream=True))

"""The chain end to end in little time: one daemon, two tiny models, everything real. Part of the default run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ollama
from prometheus_client.parser import text_string_to_metric_families

Model = Callable[[str], str]
GREEDY = {"temperature": 0}


def text_of(lines: list[dict[str, Any]]) -> str:
    return "".join(line["response"] for line in lines)


def test_an_empty_store_lists_nothing(start_server: Callable[..., Any]) -> None:
    server = start_server()
    assert server.http.get("/api/tags").json() == {"models": []}
    assert server.http.get("/api/ps").json() == {"models": []}
    assert server.stop() == 0


def test_a_file_becomes_a_model_that_is_listed_and_shown(server: Any, model: Model) -> None:
    assert f"{model('story')}:latest" in server.names()
    shown = server.post("/api/show", {"model": "story"})
    assert shown["model_info"]["general.architecture"] == "llama" and shown["capabilities"] == ["completion"]


def test_the_scripted_text_streamed_and_whole(server: Any, model: Model) -> None:
    body = {"model": model("story"), "prompt": "go", "options": GREEDY}
    lines = server.lines("/api/generate", body)
    assert [line["response"] for line in lines] == ["Once", " upon", " a", " time", ""]
    assert lines[-1]["done"] and lines[-1]["done_reason"] == "stop" and lines[-1]["eval_count"] == 5
    whole = server.post("/api/generate", body)
    assert whole["response"] == "Once upon a time" and {*lines[-1]} - {*whole} <= {"prompt_eval_cached_count"}


def test_a_chat_sees_its_messages(server: Any, model: Model) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    body = {"model": model("story"), "messages": messages, "options": GREEDY}
    assert server.post("/api/chat", body)["message"] == {"role": "assistant", "content": "Once upon a time"}
    assert server.post("/api/chat", body)["prompt_eval_count"] == len("uSEuhiEa")
    lines = server.lines("/api/chat", body)
    assert "".join(line["message"]["content"] for line in lines) == "Once upon a time"


def test_metrics_agree_with_an_answer(server: Any, model: Model) -> None:
    names = ("generated_tokens", "prompt_tokens", "prompt_tokens_cached", "time_between_tokens_seconds")

    def figures() -> list[float]:
        families = {family.name: family for family in text_string_to_metric_families(server.http.get("/metrics").text)}
        samples = [sample for name in names for sample in families[f"localllm_{name}"].samples]
        return [
            sum(s.value for s in samples if s.name in (f"localllm_{name}_total", f"localllm_{name}_count"))
            for name in names
        ]

    body = {"model": model("story"), "prompt": "metrics", "stream": False, "options": GREEDY}
    server.post("/api/generate", {"model": "story", "keep_alive": 0})  # what earlier requests did has been told then
    before = figures()
    answers = [server.post("/api/generate", body) for _ in range(2)]
    n_cached = sum(answer.get("prompt_eval_cached_count", 0) for answer in answers)
    n_prompt, n_generated = (sum(a[f"{name}eval_count"] for a in answers) for name in ("prompt_", ""))
    wanted = [n_generated, n_prompt - n_cached, n_cached, n_generated - len(answers)]
    deadline = time.monotonic() + 5
    while [after - old for after, old in zip(figures(), before, strict=True)] != wanted:
        assert time.monotonic() < deadline, (before, figures(), wanted)
        time.sleep(0.05)


def test_tokens_there_and_back(server: Any, model: Model) -> None:
    text = "hello \u00e9\U0001f999<|user|>"
    tokens = server.post("/api/tokenize", {"model": model("random"), "text": text})["tokens"]
    assert tokens[:3] == [263, 264, ord("o")] and tokens[-1] == 259
    plain = server.post("/api/tokenize", {"model": "random", "text": text, "parse_special": False})["tokens"]
    assert server.post("/api/detokenize", {"model": "random", "tokens": plain})["text"] == text


def test_equal_seeds_give_equal_texts_alone_and_beside_others(server: Any, model: Model) -> None:
    def text(prompt: str, seed: int) -> str:
        options = {"seed": seed, "temperature": 0.9, "num_predict": 40}
        body = {"model": model("random"), "prompt": prompt, "options": options}
        answer: str = server.post("/api/generate", body)["response"]
        return answer

    alone = text("seed test", 42)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(text, f"another {i} " * (i + 1), i) for i in range(3)]
        beside = pool.submit(text, "seed test", 42)
        assert beside.result() == alone
        assert all(isinstance(other.result(), str) for other in others)
    assert text("seed test", 42) == alone != text("seed test", 43)


def test_errors_are_json_and_leave_the_daemon_alive(server: Any, model: Model) -> None:
    assert "not found" in server.refused("/api/generate", {"model": "no-such", "prompt": "x"}, 404)
    assert "prompt" in server.refused("/api/generate", {"model": model("story"), "prompt": 3}, 400)
    broken = server.http.post("/api/generate", content=b'{"model": "story"')
    assert broken.status_code == 400 and broken.json()["error"]
    assert server.post("/api/generate", {"model": "story", "prompt": "go"})["response"]


def test_a_killed_runner_is_replaced(server: Any, model: Model) -> None:
    body = {"model": model("story"), "prompt": "go", "options": GREEDY}
    server.post("/api/generate", body)
    for runner in server.runners():
        runner.kill()
    assert server.post("/api/generate", body)["response"] == "Once upon a time"


def test_a_client_that_leaves_stops_the_work(server: Any, model: Model) -> None:
    body = {"model": model("random"), "prompt": "x" * 3000, "options": {"ignore_eos": True, "num_predict": -1}}
    server.post("/api/generate", {"model": "random"})
    for _ in range(5):
        with server.http.stream("POST", "/api/generate", json=body) as response:
            assert json.loads(next(response.iter_lines()))["done"] is False
    start = time.monotonic()
    server.post("/api/generate", {"model": "random", "prompt": "hi", "options": {"num_predict": 3}})
    assert time.monotonic() - start < 5


def test_keep_alive_and_unload(server: Any, model: Model) -> None:
    with ollama.Client(server.url, trust_env=False) as client:
        assert client.generate(model("story"), keep_alive="1h").done_reason == "load"
        (resident,) = [m for m in client.ps().models if m.model == "story:latest"]
        assert resident.expires_at is not None and 3500 < resident.expires_at.timestamp() - time.time() < 3700
        assert client.generate("story", keep_alive=0).done_reason == "unload"
        assert "story:latest" not in [m.model for m in client.ps().models]

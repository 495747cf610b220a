"""The native endpoints with a real model behind them, as clients of every age call them.

Not yet part of it: /api/create, /api/embed, and the routes under /v1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ollama
import pytest

pytestmark = pytest.mark.integration
Model = Callable[[str], str]
MakeModel = Callable[[str], Path]


def test_lists_are_empty_before_and_after_a_model(start_server: Callable[..., Any], gguf: MakeModel) -> None:
    server = start_server()
    for _ in range(2):
        for path in ("/api/tags", "/api/ps"):
            response = server.http.get(path)
            assert (response.status_code, response.json()) == (200, {"models": []})
        server.post("/api/generate", {"model": server.add(gguf("story"))})
        assert len(server.loaded()) == 1
        assert server.http.request("DELETE", "/api/delete", json={"model": "story"}).status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"format": None},
        {"format": ""},
        {"options": {"num_predict": 2, "tfs_z": 1.0, "no_such_option": True}},
        {"options": {"num_predict": 2, "temperature": 0}},
        {"options": {"num_predict": 2, "stop": None, "seed": None}},
        {"suffix": "", "system": "", "template": "", "context": None, "images": None, "keep_alive": None},
    ],
)
def test_what_a_request_may_hold(server: Any, model: Model, more: dict[str, Any]) -> None:
    plain = {"model": model("story"), "prompt": "x", "options": {"num_predict": 2}}
    assert server.post("/api/generate", {**plain, **more})["response"] == "Once upon"
    chat = {"model": "story", "messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 2}}
    if "suffix" not in more:
        assert server.post("/api/chat", {**chat, **more})["message"]["content"] == "Once upon"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"format": "xml"}, "format"),
        ({"format": 3}, "format"),
        ({"prompt": ["x"]}, "prompt"),
        ({"stream": "yes"}, "stream"),
        ({"options": {"temperature": "hot"}}, "temperature"),
        ({"options": {"stop": "\n\n"}}, '"stop" must be of type array'),
        ({"options": {"num_ctx": "big"}}, "num_ctx"),
        ({"options": []}, "options"),
        ({"images": ["?"]}, "base64"),
        ({"images": ["aGk="]}, "images"),
        ({"context": ["a"]}, "context"),
        ({"context": [10**6]}, "context"),
        ({"context": [-1]}, "context"),
        ({"raw": True, "system": "x"}, "raw"),
        ({"suffix": "x"}, "insert"),
        ({"think": True}, "thinking"),
        ({"think": 3}, "think"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"model": "a/b/c/d/e"}, "invalid"),
        ({"model": "../../etc/passwd"}, "invalid"),
    ],
)
def test_what_a_request_may_not_hold(server: Any, model: Model, more: dict[str, Any], named: str) -> None:
    body = {"model": model("story"), "prompt": "x", "options": {"num_predict": 2}}
    assert named in server.refused("/api/generate", {**body, **more}, 400)
    streamed = server.http.post("/api/generate", json={**body, **more})
    assert streamed.status_code == 400 and named in streamed.json()["error"]
    assert server.post("/api/generate", body)["response"] == "Once upon"


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/api/detokenize", {"tokens": [265]}, 400, "265"),
        ("/api/detokenize", {"tokens": [-1]}, 400, "-1"),
        ("/api/detokenize", {"tokens": ["a"]}, 400, "tokens"),
        ("/api/tokenize", {"text": 3}, 400, "text"),
        ("/api/chat", {"messages": "x"}, 400, "messages"),
        ("/api/chat", {"messages": [{"role": "user", "content": 42}]}, 400, "content"),
        ("/api/chat", {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, 400, "content"),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "f"}}]},
            400,
            "tools",
        ),
        ("/api/generate", {"prompt": "x", "template": "{{ if }}"}, 400, "template"),
        ("/api/copy", {"source": "none", "destination": "x"}, 404, "none"),
        ("/api/copy", {"source": "random", "destination": "a/../b"}, 400, "destination"),
        ("/api/load", {"model": "none"}, 404, "none"),
    ],
)
def test_other_endpoints_refuse_by_name(
    server: Any, model: Model, path: str, body: dict[str, Any], status: int, named: str
) -> None:
    assert named in server.refused(path, {"model": model("random"), **body}, status)


@pytest.mark.parametrize("text", ["\ud800", "\udfff\ud800", "\x00", "\uffff", "\U0010ffff"])
def test_texts_that_are_hardly_text(server: Any, model: Model, text: str) -> None:
    # A lone surrogate is legal in JSON and none in UTF-8.
    body = {"model": model("random"), "prompt": text, "system": text, "options": {"num_predict": 2, "stop": [text]}}
    response = server.http.post("/api/generate", content=json.dumps(body).encode())
    assert response.status_code == 200 and json.loads(response.text.splitlines()[-1])["done"] is True


@pytest.mark.parametrize("body", [b"", b"3", b"[]", b"[" * 100_000, b'{"a":' * 50_000, b'{"model":"random"', b"\xff"])
def test_bodies_that_are_no_request(server: Any, model: Model, body: bytes) -> None:
    response = server.http.post("/api/generate", content=body)
    assert response.status_code == 400 and response.json()["error"]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": 1e30},
        {"temperature": 1e-30},
        {"top_k": -5},
        {"top_k": 10**9},
        {"top_p": 0},
        {"top_p": 5},
        {"min_p": 1},
        {"typical_p": 0},
        {"repeat_penalty": 0},
        {"repeat_penalty": -1},
        {"repeat_last_n": 10**9},
        {"presence_penalty": 1e30, "frequency_penalty": -1e30},
        {"seed": -1},
        {"seed": 2**40},
        {"mirostat": 2, "mirostat_tau": 0},
        {"mirostat": 1, "mirostat_eta": 1e9},
        {"mirostat": 9},
        {"num_ctx": 1},
        {"num_ctx": -5},
        {"num_ctx": 10**9},
        {"num_batch": 1},
        {"num_batch": 0},
        {"num_batch": -1},
        {"num_batch": 10**9},
        {"num_thread": 1},
        {"num_thread": 10**6},
        {"num_thread": -3},
        {"num_keep": 10**9},
        {"num_keep": -7},
        {"num_predict": 10**18},
        {"logit_bias": {"999999": 1}},
        {"logit_bias": {"A": 1e300}},
        {"logit_bias": {"": 1}},
        {"n_probs": 10**6},
        {"min_keep": 10**6},
        {"dry_multiplier": 1, "dry_sequence_breakers": [""]},
        {"xtc_probability": 1, "xtc_threshold": 0},
        {"top_n_sigma": 0.0},
        {"dynatemp_range": 1e30},
        {"stop": ["x"] * 1000},
    ],
)
def test_values_at_the_edge_give_an_answer_or_a_clear_refusal(
    server: Any, model: Model, options: dict[str, Any]
) -> None:
    stops = {"num_predict": 4, **options} if options.get("num_predict", 0) < 100 else {**options, "stop": ["A"]}
    body = {"model": model("random"), "prompt": "x", "stream": False, "options": stops}
    response = server.http.post("/api/generate", json=body)
    answer = response.json()
    if response.status_code == 200:
        assert answer["done"] is True and answer["done_reason"] in ("stop", "length")
    else:
        assert response.status_code == 400 and any(name in answer["error"] for name in options)
    healthy = server.post("/api/generate", {"model": "random", "prompt": "x", "options": {"num_predict": 2}})
    assert healthy["done"] is True


def test_the_official_client(start_server: Callable[..., Any], gguf: MakeModel) -> None:
    server = start_server()
    with ollama.Client(server.url, trust_env=False) as client:
        assert [p.status for p in client.pull(f"file:{gguf('story')}", stream=True)][-1] == "success"
        assert [m.model for m in client.list().models] == ["story:latest"]
        shown = client.show("story")
        assert shown.modelinfo and shown.modelinfo["general.architecture"] == "llama"
        assert shown.details and shown.details.format == "gguf" and shown.details.family == "llama"
        assert client.generate("story", "go").response == "Once upon a time"
        parts = list(client.chat("story", [{"role": "user", "content": "go"}], stream=True))
        assert "".join(part.message.content or "" for part in parts) == "Once upon a time"
        assert parts[-1].done and parts[-1].done_reason == "stop" and parts[-1].eval_count == 5
        context = client.generate("story", "go").context
        assert context and client.generate("story", "on", context=context).response == "Once upon a time"
        (running,) = client.ps().models
        assert running.model == "story:latest" and running.size and running.context_length == 4096
        assert client.copy("story", "tale").status == "success"
        assert sorted(m.model or "" for m in client.list().models) == ["story:latest", "tale:latest"]
        assert client.chat("tale", [{"role": "user", "content": "go"}]).message.content == "Once upon a time"
        assert client.delete("story").status == client.delete("tale").status == "success"
        assert client.list().models == []
        nowhere = "127.0.0.1:1/library/no-such-model"
        for call in (
            lambda: client.pull(nowhere),
            lambda: list(client.pull(nowhere, stream=True)),
            lambda: client.generate("story", "x"),
            lambda: list(client.chat("story", [{"role": "user", "content": "x"}], stream=True)),
            lambda: client.show("story"),
            lambda: client.delete("story"),
            lambda: client.copy("story", "x"),
        ):
            with pytest.raises(ollama.ResponseError, match=r"not found|does not exist|cannot reach 127\.0\.0\.1:1"):
                call()


def test_show_tells_what_the_file_holds(server: Any, model: Model) -> None:
    shown = server.post("/api/show", {"model": model("random"), "verbose": True})
    facts = shown["model_info"]
    assert facts["llama.context_length"] == 4096 and len(facts["tokenizer.ggml.tokens"]) == 265
    assert facts["general.parameter_count"] > 50_000 and shown["details"]["quantization_level"] == "F32"
    assert json.dumps(shown)


def test_an_embedding_model_generates_nothing(server: Any, model: Model) -> None:
    assert "does not support" in server.refused("/api/generate", {"model": model("bert"), "prompt": "x"}, 400)
    chat = {"model": "bert", "messages": [{"role": "user", "content": "x"}]}
    assert "does not support" in server.refused("/api/chat", chat, 400)


def test_a_conversation_goes_on_from_its_context(server: Any, model: Model) -> None:
    body = {"model": model("random"), "prompt": "first", "options": {"seed": 3, "num_predict": 10}}
    first = server.post("/api/generate", body)
    second = server.post("/api/generate", {**body, "prompt": "second", "context": first["context"]})
    assert second["prompt_eval_count"] > first["prompt_eval_count"] + first["eval_count"]
    assert second["context"][: len(first["context"])] == first["context"]


def test_a_second_daemon_on_the_port_says_so(server: Any, serve_env: dict[str, str], tmp_path: Path) -> None:
    address = server.url.removeprefix("http://")
    variables = {**serve_env, "LOCALLLM_HOST": address, "LOCALLLM_STATE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "localllm", "serve"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert f"Error: cannot listen on {address}" in ended.stderr and "\nhint: " in ended.stderr
    assert server.http.get("/").text == "Ollama is running"

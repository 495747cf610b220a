"""Conversations and generations that outgrow the context, through everything."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration
Model = Callable[[str], str]
SYSTEM = {"role": "system", "content": "S" * 20}
LOOP = re.compile(r"(abcdef)*(ab|abcd)?")


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def long_chat() -> list[dict[str, Any]]:
    """A system message, ten turns and a last question: far more than 128 tokens."""
    turns = [
        message
        for k in range(10)
        for message in (user(f"u{k}" + "x" * 20), {"role": "assistant", "content": f"a{k}" + "y" * 20})
    ]
    return [SYSTEM, *turns, user("LAST")]


def chat_body(name: str, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": name, "messages": messages, "options": {"num_ctx": 128, "num_predict": 1}, **more}


def rendered(server: Any, body: dict[str, Any]) -> str:
    info = server.post("/api/chat", {**body, "_debug_render_only": True})["_debug_info"]
    text: str = info["rendered_template"]
    return text


def test_a_long_chat_keeps_system_and_last_message(server: Any, model: Model) -> None:
    messages = long_chat()
    body = chat_body(model("random"), messages)
    response = server.http.post("/api/chat", json={**body, "stream": False})
    answer = response.json()
    lost = answer["truncated"]
    assert response.headers["x-localllm-truncated"] == f"messages={lost['messages']}, tokens={lost['tokens']}"
    assert answer["prompt_eval_count"] <= 128 and answer["truncated"]["messages"] > 0
    whole = "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages) + "<|assistant|>"
    head = whole[: whole.index("<|end|>") + len("<|end|>")]
    text = rendered(server, body)
    assert text.startswith(head) and "LAST" in text
    assert whole.endswith(text.removeprefix(head)) and text.removeprefix(head).startswith("<|user|>")


def test_a_tool_result_stays_with_its_call(server: Any, model: Model) -> None:
    call = {"function": {"name": "f", "arguments": {"n": 1}}}
    messages: list[dict[str, Any]] = [
        SYSTEM,
        user("Q" * 20),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "f", "content": "r" * 90},
    ]
    text = rendered(server, chat_body(model("random"), messages))
    assert "S" * 20 in text and ("<|tool|>" not in text or "<|assistant|><|end|><|tool|>" in text)
    assert server.post("/api/chat", chat_body("random", messages))["prompt_eval_count"] <= 128


def test_a_last_message_that_is_too_long_by_itself(server: Any, model: Model) -> None:
    body = chat_body(model("random"), [SYSTEM, user("z" * 400)])
    error = server.refused("/api/chat", body, 400)
    assert re.search(r"\b4\d\d\b", error) and "128" in error
    assert "128" in server.refused("/api/chat", chat_body("random", long_chat(), truncate=False), 400)
    answer = server.post("/api/chat", {**body, "truncate": True})
    assert answer["prompt_eval_count"] == 127 and answer["truncated"]["tokens"] > 290


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_prompt_that_cannot_fit_is_refused_in_every_dialect(server: Any, model: Model, path: str) -> None:
    asked = {"messages": [user("z" * 400)]} if "chat" in path or "messages" in path else {"prompt": "z" * 400}
    asked = {"input": "z" * 400} if "responses" in path else asked
    body = {"model": model("random"), **asked, "max_tokens": 4, "options": {"num_ctx": 128}}
    for stream in (False, True):
        response = server.http.post(path, json={**body, "stream": stream})
        error = response.json()["error"]
        assert response.status_code == 400 and error["type"] == "invalid_request_error"
        assert re.search(r"\b4\d\d\b", error["message"]) and "128" in error["message"]
        assert path == "/v1/messages" or error["code"] == "context_length_exceeded"


def test_the_end_of_the_context_is_the_end_of_an_answer_to_openais_clients(server: Any, model: Model) -> None:
    body = {"model": model("loop"), "messages": [user("x")], "options": {"num_ctx": 64, "temperature": 0}}
    (choice,) = server.post("/v1/chat/completions", body)["choices"]
    assert choice["finish_reason"] == "length" and LOOP.fullmatch(choice["message"]["content"])
    message = server.post("/v1/messages", {**body, "max_tokens": 100})
    assert message["stop_reason"] == "max_tokens" and message["usage"]["output_tokens"] < 64
    shifted = server.post("/v1/chat/completions", {**body, "shift": True, "max_tokens": 100})
    assert shifted["usage"]["completion_tokens"] == 100 and shifted["truncated"]["shifted"] > 0


def test_progress_of_a_prompt(server: Any, model: Model) -> None:
    text = "".join(chr(97 + i % 26) for i in range(2000))
    body = {"model": model("random"), "prompt": text, "progress": True, "options": {"num_predict": 1}}
    records = server.lines("/api/generate", body)
    news = [record["progress"] for record in records if "progress" in record]
    assert len(news) >= 3 and all(record["response"] == "" for record in records[: len(news)])
    assert [n["processed"] for n in news] == sorted(n["processed"] for n in news)
    assert news[0]["processed"] == news[0]["cached"] and news[-1]["processed"] == news[-1]["total"] > 2000
    again = server.lines("/api/generate", body)
    assert again[0]["progress"]["cached"] > 1900 and again[-1]["prompt_eval_cached_count"] > 1900


@pytest.mark.parametrize("prompt", ["<|assistant|>", "p" * 500 + "<|assistant|>"])
@pytest.mark.parametrize("more", [{}, {"num_keep": 100}])
def test_a_generation_without_end_ends(server: Any, model: Model, prompt: str, more: dict[str, int]) -> None:
    start = time.monotonic()
    for num_predict in (None, -1, -2, 0, 5):
        limit = {} if num_predict is None else {"num_predict": num_predict}
        options = {"num_ctx": 64, "temperature": 0, **limit, **more}
        body = {"model": model("loop"), "raw": True, "prompt": prompt, "options": options, "truncate": True}
        lines = server.lines("/api/generate", body)
        whole = server.post("/api/generate", body)
        text = "".join(line["response"] for line in lines)
        assert text == whole["response"] and LOOP.fullmatch(text)
        for last in (lines[-1], whole):
            assert last["done"] is True and last["done_reason"] == "length"
            assert last["total_duration"] > 0 and last["prompt_eval_count"] <= 64
            assert last.get("eval_count", 0) * 2 == len(text)
        expected = {0: 0, 5: 5}.get(num_predict if num_predict is not None else -1, 640)
        assert whole.get("eval_count", 0) == expected
    assert time.monotonic() - start < 60
    start = time.monotonic()
    server.post("/api/generate", {"model": "loop", "prompt": "x", "options": {"num_predict": 5}})
    assert time.monotonic() - start < 10  # the default context is another: the model is loaded anew


def test_without_shifting_a_generation_ends_at_the_window(server: Any, model: Model) -> None:
    options = {"num_ctx": 64, "temperature": 0}
    body = {"model": model("loop"), "raw": True, "prompt": "<|assistant|>", "options": options, "shift": False}
    answer = server.post("/api/generate", body)
    assert answer["done_reason"] == "length" and answer["eval_count"] == 64 and LOOP.fullmatch(answer["response"])

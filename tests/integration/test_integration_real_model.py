"""SmolLM2 135M from its wheel, pulled and served as a user does it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import ollama
import pytest

pytestmark = pytest.mark.integration
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
STORY = [{"role": "user", "content": "Tell me a story about a dog and a boat."}]


@pytest.fixture(scope="module")
def smollm2(server: Any) -> Iterator[Any]:
    """The shared daemon, with the model in its store."""
    events = server.lines("/api/pull", {"model": "smollm2:135m"})
    assert events[0]["status"] == "pulling manifest" and events[-1] == {"status": "success"}
    totals = [event for event in events if event.get("total")]
    assert all(event.get("completed", 0) <= event["total"] for event in totals)
    yield server
    server.http.request("DELETE", "/api/delete", json={"model": "smollm2:135m"})


def chat(server: Any, messages: list[dict[str, str]] = QUESTION, **options: Any) -> dict[str, Any]:
    body = {"model": "smollm2:135m", "messages": messages, "options": {"num_predict": 60, **options}}
    answer: dict[str, Any] = server.post("/api/chat", body)
    return answer


def text(server: Any, messages: list[dict[str, str]] = QUESTION, **options: Any) -> str:
    content: str = chat(server, messages, **options)["message"]["content"]
    return content


def test_it_knows_the_capital(smollm2: Any) -> None:
    answer = chat(smollm2, temperature=0)
    assert "Paris" in answer["message"]["content"] and answer["done_reason"] == "stop"
    assert "<|im_end|>" not in answer["message"]["content"]
    with ollama.Client(smollm2.url, trust_env=False) as client:
        parts = list(client.chat("smollm2:135m", QUESTION, stream=True, options={"temperature": 0}))
        assert "".join(part.message.content or "" for part in parts) == answer["message"]["content"]
        assert len(parts) > 5 and parts[-1].eval_count == len(parts)


def test_equal_seeds_alone_beside_others_cached_and_after_a_reload(smollm2: Any) -> None:
    def other(i: int) -> str:
        return text(smollm2, [{"role": "user", "content": f"Count to {i + 5}. " * (8 * i + 1)}], seed=i)

    first = text(smollm2, STORY, seed=7)
    assert text(smollm2, STORY, seed=7) == first != text(smollm2, STORY, seed=8)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(other, i) for i in range(3)]
        assert pool.submit(text, smollm2, STORY, seed=7).result() == first
        beside = [one.result() for one in others]
    smollm2.post("/api/generate", {"model": "smollm2:135m", "keep_alive": 0})
    assert text(smollm2, STORY, seed=7) == first
    assert [other(i) for i in range(3)] == beside


def test_a_conversation_reuses_what_was_evaluated(smollm2: Any) -> None:
    messages = [{"role": "user", "content": "Tell me about the sea. " * 40}]
    first = chat(smollm2, messages, temperature=0)
    messages += [first["message"], {"role": "user", "content": "Go on."}]
    second = chat(smollm2, messages, temperature=0)
    assert second["prompt_eval_cached_count"] >= first["prompt_eval_count"]
    smollm2.unload_all()
    cold = chat(smollm2, messages, temperature=0)
    assert "prompt_eval_cached_count" not in cold and cold["message"] == second["message"]


def test_leaving_a_long_prompt_frees_the_model(smollm2: Any) -> None:
    text(smollm2, num_predict=1)
    body = {"model": "smollm2:135m", "prompt": "The sea is wide and deep. " * 280, "stream": True}
    with pytest.raises(httpx.TimeoutException):
        smollm2.http.post("/api/generate", json=body, timeout=0.5)
    start = time.monotonic()
    text(smollm2, num_predict=1)
    assert time.monotonic() - start < 8


def test_a_small_context_keeps_the_question(smollm2: Any) -> None:
    turns = [
        {"role": role, "content": "words and more words " * 10} for _ in range(10) for role in ("user", "assistant")
    ]
    answer = chat(smollm2, [*turns, *QUESTION], temperature=0, num_ctx=256)
    assert answer["prompt_eval_count"] <= 256 and answer["truncated"]["messages"] > 0
    assert "Paris" in answer["message"]["content"]

"""Equal seeds give equal texts, whatever else happens: company, caches, batch sizes, threads, reloads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.integration
Model = Callable[[str], str]
PROMPT = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 3
OPTIONS = {"seed": 11, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_predict": 80, "ignore_eos": True}


def answer(server: Any, prompt: Any = PROMPT, **options: Any) -> dict[str, Any]:
    body = {"model": "random", "prompt": prompt, "raw": True, "options": {**OPTIONS, **options}, "logprobs": True}
    whole: dict[str, Any] = server.post("/api/generate", body)
    return whole


def said(whole: dict[str, Any]) -> tuple[str, list[float]]:
    """The text, and what cannot agree by chance: the log-probability of every token."""
    return whole["response"], [item["logprob"] for item in whole["logprobs"]]


@pytest.fixture
def cold(server: Any, model: Model) -> tuple[str, list[float]]:
    """The answer of a model that was just loaded."""
    model("random")
    server.unload_all()
    whole = answer(server)
    assert "prompt_eval_cached_count" not in whole
    return said(whole)


def test_with_the_prompt_cached(server: Any, cold: Any) -> None:
    whole = answer(server)
    assert whole["prompt_eval_cached_count"] == whole["prompt_eval_count"] - 1
    assert said(whole) == cold
    # The end of the prompt is evaluated anew, from an odd place.
    answer(server, PROMPT[:77] + "another way to go on")
    assert said(answer(server)) == cold
    answer(server, PROMPT + "and more")
    assert said(answer(server)) == cold


@pytest.mark.parametrize("num_batch", [1, 7, 64, 100])
def test_with_another_batch_size(server: Any, cold: Any, num_batch: int) -> None:
    server.unload_all()
    assert said(answer(server, num_batch=num_batch)) == cold


@pytest.mark.parametrize("options", [{"num_thread": 1}, {"num_ctx": 700}, {"num_ctx": 8192}])
def test_with_other_threads_and_contexts(server: Any, cold: Any, options: dict[str, int]) -> None:
    server.unload_all()
    assert said(answer(server, **options)) == cold


def test_beside_three_others(server: Any, cold: Any) -> None:
    def other(i: int) -> None:
        answer(server, f"other {i} " * 30 * (i + 1), seed=i, num_predict=60 + 20 * i, temperature=0.5 * i)

    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            others = [pool.submit(other, i) for i in range(3)]
            mine = [pool.submit(answer, server) for _ in range(2)]
            assert all(said(one.result()) == cold for one in mine)
            for one in others:
                one.result()


def test_streamed_as_whole(server: Any, cold: Any) -> None:
    body = {"model": "random", "prompt": PROMPT, "raw": True, "options": OPTIONS, "logprobs": True}
    lines = server.lines("/api/generate", body)
    text = "".join(line["response"] for line in lines)
    assert (text, [item["logprob"] for line in lines for item in line.get("logprobs", [])]) == cold


def test_a_chat_turn_after_turn_as_at_once(server: Any, model: Model) -> None:
    options = {"temperature": 0, "num_predict": 30, "ignore_eos": True}

    def reply(messages: list[dict[str, str]]) -> tuple[str, int]:
        whole = server.post("/api/chat", {"model": model("random"), "messages": messages, "options": options})
        return whole["message"]["content"], whole.get("prompt_eval_cached_count", 0)

    messages: list[dict[str, str]] = []
    replies = []
    for question in ("first question", "and a second", "a third one to end with"):
        messages.append({"role": "user", "content": question})
        text, n_cached = reply(messages)
        replies.append(text)
        messages.append({"role": "assistant", "content": text})
    assert n_cached > 0
    for i in range(3):
        server.unload_all()
        assert reply(messages[: 2 * i + 1]) == (replies[i], 0)

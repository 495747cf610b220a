"""What the daemon hears of the evaluation of prompts."""

from __future__ import annotations

from typing import Any

import pytest

from localllm.messages import Chunk, Done, Prefill

END = "<|assistant|>"


def prefills(runner: Any, request_id: str) -> list[tuple[int, int, int]]:
    """(total, cached, processed) of each piece of news."""
    messages = [m for m in runner.result(request_id).messages if isinstance(m, Prefill)]
    elapsed = [m.elapsed_ns for m in messages]
    assert elapsed == sorted(elapsed)
    return [(m.total, m.cached, m.processed) for m in messages]


def test_a_turn_is_told_once_and_first(script_runner: Any) -> None:
    runner = script_runner(n_batch=8)
    request_id = runner.submit("x" * 19 + END)
    assert runner.result(request_id).messages == []
    runner.run()
    assert [type(m) for m in runner.result(request_id).messages] == [Prefill, Chunk, Chunk, Chunk, Done]
    assert prefills(runner, request_id) == [(20, 0, 0)]


def test_progress_is_told_after_each_step_of_the_prompt(script_runner: Any) -> None:
    runner = script_runner(n_batch=8)
    first = runner.submit("x" * 19 + END, progress=True)
    runner.run()
    second = runner.submit("x" * 15 + "y" * 4 + END, progress=True)
    runner.run()
    assert prefills(runner, first) == [(20, 0, 0), (20, 0, 8), (20, 0, 16), (20, 0, 20)]
    assert prefills(runner, second) == [(20, 15, 15), (20, 15, 20)]


@pytest.mark.parametrize("n_steps", [1, 2])
def test_what_a_pause_took_is_not_told_twice(script_runner: Any, n_steps: int) -> None:
    runner = script_runner(n_batch=8, n_ctx=40, n_tokens=40)
    background = runner.submit("y" * 30 + END, is_interactive=False, progress=True)
    for _ in range(n_steps):
        runner.batch.step()
    runner.generate("x" * 30 + END)
    runner.run()
    processed = [n for _, _, n in prefills(runner, background)]
    assert processed == sorted(set(processed)) and processed[0] == 0 and processed[-1] == 31


def test_the_first_news_says_what_was_cut(script_runner: Any) -> None:
    runner = script_runner(n_ctx=40, template="{% for m in messages %}{{ m.content }}{% endfor %}" + END)
    messages = [{"role": role, "content": "x" * 30} for role in ("user", "assistant", "user")]
    result = runner.chat(messages)
    (news,) = [m for m in result.messages if isinstance(m, Prefill)]
    assert news.truncated is not None and news.truncated == result.done.truncated

"""What the steps count, and when the daemon hears of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from localllm.messages import Figures
from localllm.runner.meter import Meter

END = "<|assistant|>"


def figures(runner: Any) -> list[Figures]:
    return [message for message in runner.sent if isinstance(message, Figures)]


def counts(runner: Any) -> Counter[str]:
    """Everything that was reported so far."""
    runner.batch.report()
    total: Counter[str] = Counter()
    for message in figures(runner):
        total.update(message.counts.to_json())
    return +total


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def clocked(runner: Any) -> Clock:
    """The clock that the runner's meter has from now on."""
    clock = Clock()
    runner.batch._meter = Meter(runner.sent.append, clock)
    return clock


def test_tokens_and_hits_are_those_of_the_answers(script_runner: Any) -> None:
    runner = script_runner(n_batch=8)
    stats = [runner.generate(prompt).done.stats for prompt in ("x" * 60 + END, "x" * 60 + "!" + END, "y" * 40 + END)]
    n_cached = sum(s.prompt_eval_cached_count for s in stats)
    assert n_cached > 0
    assert counts(runner) == {
        "prompt_tokens": sum(s.prompt_eval_count for s in stats) - n_cached,
        "prompt_tokens_cached": n_cached,
        "prompt_cache_lookups": 3,
        "prompt_cache_hits": 1,
        "generated_tokens": sum(s.eval_count for s in stats),
        "steps": len(runner.engine.steps),
        "step_ns": pytest.approx((runner.engine.now_s - 100) * 1e9),
    }


def test_forced_tokens(script_runner: Any) -> None:
    runner = script_runner()
    stats = runner.generate(grammar='root ::= "forced"').done.stats
    counted = counts(runner)
    assert counted["constrained_answers"] == 1
    assert counted["generated_tokens"] == stats.eval_count
    assert 1 <= counted["forced_tokens"] <= stats.eval_count


def test_shifts_and_evictions(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_ctx=40, n_tokens=40)
    runner.generate("x" * 20 + END, options={"num_predict": 60})
    assert counts(runner)["context_shifts"] >= 2 and not counts(runner)["kv_cache_page_evictions"]
    for runner.engine.n_pages_evicted in (2, 5):
        runner.generate()
        runner.batch.report()
    assert counts(runner)["kv_cache_page_evictions"] == 5


def test_times_between_tokens(script_runner: Any) -> None:
    runner = script_runner(loop=True)
    clock = clocked(runner)
    runner.engine.before_step = lambda entries: setattr(clock, "now_s", clock.now_s + 0.02)
    runner.generate(options={"num_predict": 5})
    runner.batch.report()
    (message,) = figures(runner)
    assert message.token_gaps[4] == 4 and sum(message.token_gaps) == 4  # 10 to 25 ms, four times
    assert message.token_gaps_s == pytest.approx(0.08)
    runner.generate(options={"num_predict": 2})
    runner.batch.report()
    assert sum(figures(runner)[-1].token_gaps) == 1  # what is new


def test_a_pause_is_no_new_prompt_and_no_time_between_tokens(script_runner: Any) -> None:
    runner = script_runner(loop=True)
    clock = clocked(runner)
    background = runner.submit("x" * 60 + END, is_interactive=False, options={"num_predict": 10})
    for _ in range(5):
        runner.batch.step()
    runner.engine.before_step = lambda entries: setattr(clock, "now_s", clock.now_s + 0.3)
    runner.submit("y" * 60 + END, options={"num_predict": 1})
    runner.batch.step()
    runner.engine.before_step = lambda entries: None
    runner.run()
    counted = counts(runner)
    assert (counted["prompt_cache_lookups"], counted["prompt_tokens_cached"]) == (2, 0)
    assert counted["generated_tokens"] == runner.result(background).done.stats.eval_count + 1
    assert sum(message.token_gaps_s for message in figures(runner)) == 0


def test_reports_come_once_a_second_and_at_the_end(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    clock = clocked(runner)
    for _ in range(3):
        runner.submit(options={"num_predict": 20})
    for _ in range(10):
        runner.batch.step()
        runner.batch.report()
    assert figures(runner) == []
    clock.now_s += 1.0
    runner.batch.report()
    (message,) = figures(runner)
    levels = message.levels
    assert (levels.sequences_running, levels.sequences_waiting) == (2, 1)
    assert levels.kv_cache_pages_used == sum(len(seq) for seq in runner.engine.open_sequences) > 0
    runner.run()
    runner.batch.report()
    runner.batch.report()
    assert len(figures(runner)) == 2  # nothing new, nothing said
    assert figures(runner)[-1].levels.sequences_running == 0
    assert counts(runner)["generated_tokens"] == 60


def test_a_canceled_request_counts_for_what_it_took(script_runner: Any) -> None:
    runner = script_runner(loop=True)
    request_id = runner.submit(options={"num_predict": 50})
    for _ in range(4):
        runner.batch.step()
    runner.batch.cancel(request_id)
    runner.run()
    assert counts(runner)["generated_tokens"] == 4
    assert figures(runner)[-1].levels.sequences_running == 0

"""The step loop: batching, reuse of prefixes, cancel, and failures that stay alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from localllm.engine.prefix_tree import common_length


def rows_of(step: Any) -> list[tuple[int, str]]:
    return [(len(tokens), wanted) for _, tokens, wanted in step]


def rows(runner: Any, step: int) -> list[tuple[int, str]]:
    return rows_of(runner.engine.steps[step])


def test_prefill_in_chunks_then_one_token_a_step(script_runner: Any) -> None:
    runner = script_runner(n_batch=8)
    runner.generate("x" * 19 + "<|assistant|>")
    assert [rows(runner, i) for i in range(5)] == [
        [(8, "none")],
        [(8, "none")],
        [(4, "last")],
        [(1, "last")],
        [(1, "last")],
    ]


def test_num_predict_0_evaluates_the_prompt_alone(script_runner: Any) -> None:
    runner = script_runner()
    result = runner.generate("abc", options={"num_predict": 0})
    assert (result.text, result.done.done_reason, result.done.stats.eval_count) == ("", "length", 0)
    assert rows(runner, 0) == [(3, "none")]


def test_requests_share_steps_and_decoding_comes_first(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_batch=8, n_parallel=2)
    first = runner.submit(options={"num_predict": 30})
    for _ in range(3):
        runner.batch.step()
    second = runner.submit("y" * 20 + "<|assistant|>", options={"num_predict": 3})
    runner.run()
    mixed = [step for step in map(rows_of, runner.engine.steps) if len(step) == 2]
    assert len(mixed) >= 4 and all(step[0] == (1, "last") and step[1][0] <= 7 for step in mixed)
    assert runner.result(first).text == "abcdef" * 10
    assert runner.result(second).text == "abcdef"


def test_more_requests_than_sequences_wait(script_runner: Any) -> None:
    runner = script_runner(n_parallel=2)
    ids = [runner.submit() for _ in range(7)]
    runner.run()
    assert [runner.result(i).text for i in ids] == ["abcdef"] * 7
    assert max(len(step) for step in runner.engine.steps) == 2


def test_the_next_turn_reuses_the_last_one(script_runner: Any) -> None:
    runner = script_runner()
    messages = [{"role": "user", "content": "x" * 50}]
    first = runner.chat(messages)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "more"}]
    before = runner.engine.n_evaluated
    second = runner.chat(messages).done.stats
    # "abcdef" is three sampled pieces of the first answer, but spelled in bytes in the second prompt
    assert second.prompt_eval_cached_count == 1 + 50 + 1 + 1
    assert runner.engine.n_evaluated - before == second.prompt_eval_count - second.prompt_eval_cached_count + 3
    third = runner.chat(messages).done.stats
    assert third.prompt_eval_cached_count == third.prompt_eval_count - 1  # the last one is evaluated always


def test_requests_begin_with_what_others_evaluated(script_runner: Any) -> None:
    runner = script_runner(n_parallel=2)
    prompts = [letter * 60 for letter in "abcd"]
    for prompt in prompts:
        assert runner.generate(prompt).done.stats.prompt_eval_cached_count == 0
    for prompt in prompts:
        assert runner.generate(prompt + "!").done.stats.prompt_eval_cached_count == 60


def test_requests_begin_with_what_runs(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    first = runner.submit("x" * 60 + "<|assistant|>", options={"num_predict": 30})
    runner.batch.step()
    second = runner.submit("x" * 60 + "<|assistant|>", options={"num_predict": 30})
    runner.run()
    assert runner.result(second).done.stats.prompt_eval_cached_count == 60
    assert runner.result(first).text == runner.result(second).text


def test_nothing_stays_open(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    runner.generate("a" * 60, options={"num_predict": 3})
    runner.batch.cancel(runner.submit(options={"num_predict": 30}))
    runner.run()
    assert runner.engine.open_sequences == []


@pytest.mark.parametrize("n_steps", [0, 1, 3, 30])
def test_cancel_takes_effect_at_the_next_step(script_runner: Any, n_steps: int) -> None:
    runner = script_runner(loop=True, n_batch=8, n_parallel=2)
    other = runner.submit(options={"num_predict": 50})
    canceled = runner.submit("z" * 100 + "<|assistant|>")
    for _ in range(n_steps):
        runner.batch.step()
    runner.batch.cancel(canceled)
    n_messages, n_done = len(runner.result(canceled).messages), len(runner.engine.steps)
    runner.run()
    assert len(runner.result(canceled).messages) == n_messages
    assert all(len(step) == 1 for step in runner.engine.steps[n_done:])
    assert runner.result(other).text == ("abcdef" * 20)[:100]
    assert runner.generate("z" * 100 + "<|assistant|>", options={"num_predict": 3}).text == "abcdef"
    runner.batch.cancel("nobody")


def test_a_canceled_request_that_waits_is_never_begun(script_runner: Any) -> None:
    runner = script_runner()
    first, second = runner.submit(), runner.submit()
    runner.batch.cancel(second)
    runner.run()
    assert runner.result(first).text == "abcdef"
    assert runner.result(second).messages == []


def test_bad_logits_end_one_request(script_runner: Any) -> None:
    runner = script_runner(n_parallel=2)
    scripted, (bad,) = runner.engine.logits_of, runner.tokenizer.encode("!")
    runner.engine.logits_of = lambda tokens: scripted(tokens) * (np.nan if bad in tokens else 1)
    failing, fine = runner.submit("!"), runner.submit()
    runner.run()
    assert runner.result(failing).error.kind == "SamplingError"
    assert runner.result(fine).text == "abcdef"


def test_a_step_that_fails_ends_the_request_at_fault(script_runner: Any) -> None:
    runner = script_runner(n_parallel=3)
    (bad,) = runner.tokenizer.encode("!")

    def before_step(entries: Any) -> None:
        if any(bad in entry.tokens for entry in entries):
            raise ValueError("no such thing")

    runner.engine.before_step = before_step
    ids = [runner.submit(prompt) for prompt in ("<|assistant|>", "!", "x<|assistant|>")]
    runner.run()
    assert runner.result(ids[1]).error.kind == "RunnerError"
    assert "no such thing" in runner.result(ids[1]).error.error
    assert [runner.result(ids[i]).text for i in (0, 2)] == ["abcdef", "abcdef"]
    assert runner.generate().text == "abcdef"


def test_common_length() -> None:
    assert [common_length(a, [1, 2, 3]) for a in ([], [1, 2], [1, 2, 3, 4], [2])] == [0, 2, 3, 0]

"""Requests that are not interactive run only while none that is runs or waits, and say the same all the same."""

from __future__ import annotations

from typing import Any

import pytest

LONG = {"num_predict": 40}


def in_steps(runner: Any, start: int = 0) -> list[int]:
    """How many sequences took part in each step."""
    return [len(step) for step in runner.engine.steps[start:]]


def test_an_interactive_request_is_served_first(script_runner: Any) -> None:
    runner = script_runner()
    background = runner.submit(is_interactive=False)
    later = runner.submit()
    runner.run()
    ids = [message.id for message in runner.sent]
    assert ids.index(later) < ids.index(background) and ids[-1] == background
    assert runner.result(background).text == runner.result(later).text == "abcdef"


@pytest.mark.parametrize("n_steps", [1, 2, 3, 10])
def test_it_pauses_and_goes_on(script_runner: Any, n_steps: int) -> None:
    runner = script_runner(loop=True, n_batch=8, n_parallel=2)
    background = runner.submit("y" * 12 + "<|assistant|>", is_interactive=False, options=LONG)
    for _ in range(n_steps):
        runner.batch.step()
    start = len(runner.engine.steps)
    interactive = runner.submit("x" * 12 + "<|assistant|>", options={"num_predict": 7})
    n_sent = len(runner.result(background).messages)
    while not runner.result(interactive).messages or runner.result(interactive).messages[-1].type != "done":
        runner.batch.step()
    assert len(runner.result(background).messages) == n_sent and set(in_steps(runner, start)) == {1}
    runner.run()
    assert runner.result(background).text == ("abcdef" * 20)[:80]
    # Its sequence was still there: nothing is evaluated twice.
    assert runner.engine.n_evaluated == 13 + 39 + 13 + 6
    assert runner.result(background).done.stats.eval_count == 40


def test_its_pages_are_given_back_where_they_are_needed(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_ctx=100, n_tokens=100, n_parallel=1)
    background = runner.submit("y" * 50 + "<|assistant|>", is_interactive=False, options=LONG)
    for _ in range(12):
        runner.batch.step()
    interactive = runner.submit("x" * 80 + "<|assistant|>", options={"num_predict": 5})
    before = runner.engine.n_evaluated
    runner.run()
    assert runner.result(interactive).text == "abcdefabcd"
    assert runner.result(background).text == ("abcdef" * 20)[:80]
    assert runner.engine.n_evaluated - before > 80 + 50  # its prompt once more


def test_a_full_context_survives_a_pause(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_ctx=64, n_batch=16, n_slots=1, n_parallel=1)
    options = {"num_predict": 120, "num_keep": 4}
    alone = runner.generate("y" * 20 + "<|assistant|>", options=options)
    for n_steps in (5, 43, 44, 45, 46, 70):
        background = runner.submit("y" * 20 + "<|assistant|>", is_interactive=False, options=options)
        for _ in range(n_steps):
            runner.batch.step()
        runner.generate("x" * 30 + "<|assistant|>", options={"num_predict": 3})
        assert runner.result(background).text == alone.text
        assert runner.result(background).done.truncated == alone.done.truncated


def test_what_is_not_shifted_ends_at_a_full_context(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_ctx=64, n_parallel=1)
    background = runner.submit("y" * 40 + "<|assistant|>", is_interactive=False, shift=False, options=LONG)
    while len(runner.engine.open_sequences[0] if runner.engine.open_sequences else ()) < 64:
        runner.batch.step()
    assert runner.generate().text
    assert runner.result(background).done.done_reason == "length"


def test_a_paused_request_can_be_canceled(script_runner: Any) -> None:
    runner = script_runner(loop=True)
    background = runner.submit(is_interactive=False, options=LONG)
    runner.batch.step()
    interactive = runner.submit(options=LONG)
    runner.batch.step()
    runner.batch.cancel(background)
    n_messages = len(runner.result(background).messages)
    runner.run()
    assert len(runner.result(background).messages) == n_messages
    assert len(runner.result(interactive).text) == 80


def test_several_share_steps_while_nobody_waits(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    ids = [runner.submit(is_interactive=False, options=LONG) for _ in range(3)]
    runner.batch.step()
    assert in_steps(runner) == [2]
    runner.generate(options={"num_predict": 2})
    assert {runner.result(i).text for i in ids} == {("abcdef" * 20)[:80]}
    ends = [message.id for message in runner.sent if message.type == "done"]
    assert ends[1:] == ids  # those that had begun come first

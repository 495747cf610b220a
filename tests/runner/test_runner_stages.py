"""Prompts that go through the model in several steps: whatever happens meanwhile, answers are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from localllm.runner.budget import CHUNK_ROWS
from tests.runner.conftest import ROW_S, STEP_S, FakeEngine

END = "<|assistant|>"


@pytest.fixture
def busy_runner(script_runner: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A runner that knows what steps cost, in which an answer is running; and the request's id."""
    monkeypatch.setattr(FakeEngine, "n_stages", 6)

    def make(**sizes: Any) -> tuple[Any, str]:
        runner = script_runner(loop=True, **{"n_batch": 512, "n_parallel": 3, **sizes})
        runner.generate("w" * 100 + END, options={"num_predict": 4})
        request_id = runner.submit("r" + END, options={"num_predict": 600})
        for _ in range(10):
            runner.batch.step()
        return runner, request_id

    return make


def chunks_of(runner: Any) -> list[Any]:
    """The sequences with tokens on their way through the model."""
    return [seq for seq in runner.engine.open_sequences if seq.n_chunk]


def step_until_under_way(runner: Any) -> Any:
    for _ in range(100):
        runner.batch.step()
        if chunks_of(runner):
            return chunks_of(runner)[0]
    raise AssertionError("nothing goes stage by stage")


def test_chunks_go_through_in_several_steps(busy_runner: Any) -> None:
    runner, running = busy_runner()
    asked = runner.submit("y" * 200 + END, options={"num_predict": 6})
    n_steps, began_s = len(runner.engine.steps), runner.engine.now_s
    sizes, gaps = set(), []
    while not runner.result(asked).chunks:
        before_s = runner.engine.now_s
        runner.batch.step()
        gaps.append(runner.engine.now_s - before_s)
        sizes |= {seq.n_chunk for seq in chunks_of(runner)}
    assert CHUNK_ROWS <= max(sizes) < 2 * CHUNK_ROWS and len(runner.engine.steps) - n_steps > 200 // CHUNK_ROWS
    assert max(gaps) < 2.2 * (STEP_S + ROW_S) and runner.engine.now_s - began_s < 0.5
    runner.run()
    assert runner.result(asked).text == "abcdef" * 2 and runner.result(running).text == "abcdef" * 200


def test_a_canceled_one_gives_its_pages_back(busy_runner: Any) -> None:
    runner, running = busy_runner()
    asked = runner.submit("y" * 200 + END)
    seq = step_until_under_way(runner)
    runner.batch.cancel(asked)
    runner.batch.step()
    assert not seq.is_open and not chunks_of(runner)
    runner.run()
    assert runner.result(running).text == "abcdef" * 200 and runner.engine.open_sequences == []


def test_a_shorter_prompt_overtakes_what_waits_between_stages(busy_runner: Any) -> None:
    runner, _ = busy_runner()
    long = runner.submit("y" * 2000 + END, options={"num_predict": 3})
    waiting = step_until_under_way(runner)
    n_done, n_before = waiting.n_stages_done, len(waiting)
    short = runner.submit("z" * 60 + END, options={"num_predict": 3})
    while not runner.result(short).chunks:
        runner.batch.step()
    assert (waiting.n_stages_done, len(waiting)) == (n_done, n_before), "it waits where it was"
    runner.run()
    assert runner.result(short).text == runner.result(long).text == "abcdef"


@pytest.mark.parametrize(("n_more", "is_lost"), [(3, False), (200, True)])
def test_it_is_given_up_only_for_more_than_it_has(busy_runner: Any, n_more: int, is_lost: bool) -> None:
    """What another has evaluated of the same prompt meanwhile."""
    runner, _ = busy_runner()
    long = runner.submit("y" * 2000 + END, options={"num_predict": 3})
    waiting = step_until_under_way(runner)
    short = runner.submit("y" * (len(waiting) + n_more) + END, options={"num_predict": 1})
    while not runner.result(short).messages or runner.result(short).messages[-1].type != "done":
        runner.batch.step()
    for _ in range(2):
        runner.batch.step()
    assert waiting.is_open != is_lost
    runner.run()
    assert runner.result(long).text == "abcdef"


def test_more_that_decode_do_not_keep_it_waiting(busy_runner: Any) -> None:
    """There is no room for its rows beside theirs any more: it goes on with fewer."""
    runner, running = busy_runner(n_batch=CHUNK_ROWS + 1)
    long = runner.submit("y" * 300 + END, options={"num_predict": 3})
    assert step_until_under_way(runner).n_chunk == CHUNK_ROWS
    runner.submit("z" + END, options={"num_predict": 600})
    while not runner.result(long).chunks:
        runner.batch.step()
    assert len(runner.result(running).text) < 2 * 300
    runner.run()
    assert runner.result(long).text == "abcdef"


def test_it_goes_on_at_once_where_nobody_decodes_any_more(busy_runner: Any) -> None:
    runner, running = busy_runner()
    asked = runner.submit("y" * 200 + END, options={"num_predict": 3})
    seq = step_until_under_way(runner)
    n_before = len(seq)
    runner.batch.cancel(running)
    runner.batch.step()
    assert not seq.n_chunk and len(seq) > n_before
    runner.run()
    assert runner.result(asked).text == "abcdef"


def test_a_step_that_fails_meanwhile(busy_runner: Any) -> None:
    """What was on its way is lost, and evaluated again."""
    runner, running = busy_runner()
    asked = runner.submit("y" * 200 + END, options={"num_predict": 3})
    step_until_under_way(runner)

    def fail(entries: Any) -> None:
        for entry in entries:
            entry.seq.truncate(len(entry.seq))
        runner.engine.before_step = lambda entries: None
        raise RuntimeError("broken")

    runner.engine.before_step = fail
    runner.run()
    assert runner.result(running).text == "abcdef" * 200 and runner.result(asked).text == "abcdef"
    assert runner.engine.open_sequences == []

"""Short prompts go first, and long ones are served all the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runner.conftest import ROW_S, STEP_S

pytestmark = pytest.mark.usefixtures("n_stages")

END = "<|assistant|>"


def first_tokens(runner: Any) -> list[str]:
    """The requests in the order of their first tokens."""
    return list(dict.fromkeys(m.id for m in runner.sent if m.type == "chunk"))


def warm_up(runner: Any) -> None:
    """Let it learn what steps cost."""
    for n in (100, 30, 60):
        runner.generate("w" * n + END, options={"num_predict": 4})


def test_the_shortest_prompt_goes_first(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=4)
    warm_up(runner)
    lengths = (("a", 900), ("b", 500), ("c", 50))
    ids = [runner.submit(letter * n + END, options={"num_predict": 3}) for letter, n in lengths]
    start = len(first_tokens(runner))
    runner.run()
    assert first_tokens(runner)[start:] == ids[::-1]


def test_a_short_prompt_overtakes_one_that_is_being_evaluated(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    warm_up(runner)
    long = runner.submit("a" * 2000 + END, options={"num_predict": 3})
    runner.batch.step()
    short = runner.submit("b" * 20 + END, options={"num_predict": 3})
    start = len(first_tokens(runner))
    runner.run()
    assert first_tokens(runner)[start:] == [short, long]


def test_what_is_in_the_cache_does_not_count(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=1)
    warm_up(runner)
    runner.generate("a" * 1000 + END, options={"num_predict": 1})
    running = runner.submit("x" * 20 + END, options={"num_predict": 20})
    for _ in range(3):
        runner.batch.step()
    short = runner.submit("b" * 100 + END, options={"num_predict": 3})
    known = runner.submit("a" * 1000 + "!" + END, options={"num_predict": 3})
    start = len(first_tokens(runner))
    runner.run()
    assert first_tokens(runner)[start:] in ([known, short], [running, known, short])


@pytest.mark.parametrize(("n_batch", "n_shared"), [(64, 640), (1024, 320)])
def test_nothing_is_evaluated_twice(script_runner: Any, n_batch: int, n_shared: int) -> None:
    runner = script_runner(loop=True, n_batch=n_batch, n_parallel=8)
    warm_up(runner)
    before = runner.engine.n_evaluated
    ids = [runner.submit("s" * n_shared + letter * 10 + END, options={"num_predict": 1}) for letter in "abcdef"]
    runner.run()
    assert runner.engine.n_evaluated - before <= n_shared + 6 * (11 + 32)
    assert all(runner.result(i).done.stats.prompt_eval_cached_count >= n_shared - 32 for i in ids[1:])


def test_who_is_overtaken_takes_over_what_was_evaluated_meanwhile(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    warm_up(runner)
    before = runner.engine.n_evaluated
    long = runner.submit("s" * 640 + "l" * 640 + END, options={"num_predict": 1})
    runner.batch.step()
    short = runner.submit("s" * 640 + END, options={"num_predict": 1})
    start = len(first_tokens(runner))
    runner.run()
    assert first_tokens(runner)[start:] == [short, long]
    assert runner.engine.n_evaluated - before <= 1281 + 2 * 64
    assert runner.result(long).done.stats.prompt_eval_cached_count == 0


def test_a_stream_of_short_prompts_does_not_starve_a_long_one(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    warm_up(runner)
    long = runner.submit("a" * 1000 + END, options={"num_predict": 2})
    started_s = runner.engine.now_s
    for i in range(4000):
        runner.submit(f"{i:04}" + "b" * (56 + i % 7) + END, options={"num_predict": 2})
        runner.batch.step()
        if long in first_tokens(runner):
            break
    own_s = 1000 * ROW_S + 1000 / 64 * STEP_S
    assert runner.engine.now_s - started_s < 5 * own_s


arrivals = st.lists(st.tuples(st.floats(0, 0.2), st.integers(1, 400), st.integers(1, 12)), min_size=1, max_size=14)


@given(arrivals, st.integers(1, 4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_everybody_is_served_within_a_bound(
    script_runner: Any, arrivals: list[tuple[float, int, int]], n_parallel: int
) -> None:
    """Nobody waits longer than it takes to serve, one by one, all that arrive before he has waited for as long as his
    prompt takes."""
    runner = script_runner(loop=True, n_parallel=n_parallel)
    warm_up(runner)
    engine = runner.engine
    ids, at_s, prompt_s, whole_s, done_s = [], [], [], [], {}
    queue = list(arrivals)
    next_s = engine.now_s
    while queue or runner.batch._active or runner.batch._waiting:
        if queue and engine.now_s >= next_s:
            gap_s, n_prompt, n_predict = queue.pop(0)
            ids.append(runner.submit(chr(97 + len(ids)) * n_prompt + END, options={"num_predict": n_predict}))
            at_s.append(engine.now_s)
            prompt_s.append((n_prompt + 1) * ROW_S + (n_prompt // 16 + 1) * STEP_S)
            whole_s.append(prompt_s[-1] + n_predict * (STEP_S + ROW_S))
            next_s = engine.now_s + gap_s
        if not (runner.batch._active or runner.batch._waiting):
            engine.now_s = next_s
        before = len(runner.sent)
        runner.batch.step()
        done_s |= {m.id: engine.now_s for m in runner.sent[before:] if m.type == "done"}
    for i, request_id in enumerate(ids):
        last_s = at_s[i] + 2 * prompt_s[i]
        served_s = sum(took_s for arrived_s, took_s in zip(at_s, whole_s, strict=True) if arrived_s <= last_s)
        assert done_s[request_id] - at_s[i] <= 2 * served_s + 10 * STEP_S

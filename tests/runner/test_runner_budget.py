"""What steps cost is learned, and prefill beside decoding is as much as that allows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.runner.budget import (
    ALONE_S,
    CHUNK_ROWS,
    NOTHING,
    PROBE_INTERVAL,
    STRETCH,
    Budget,
    Grant,
    Part,
)
from localllm.runner.costs import N_KINDS, Costs

END = "<|assistant|>"


class Machine:
    """Steps that take what they take on some machine, up to noise, and now and then far longer."""

    def __init__(self, base_s: float, row_s: float, read_s: float, attend_s: float, seed: int = 0) -> None:
        self.base_s, self.row_s, self.read_s, self.attend_s = base_s, row_s, read_s, attend_s
        self.random = random.Random(seed)

    def seconds(self, decoding: list[Part], prefilled: list[Part]) -> float:
        seconds = self.base_s
        for n_before, n, share in (*decoding, *prefilled):
            seconds += share * (n * self.row_s + n_before * self.read_s + (n - 1) * (n_before + n / 2) * self.attend_s)
        return seconds

    def noise(self) -> float:
        return self.random.uniform(0.95, 1.1) * (self.random.choice((2, 4)) if self.random.random() < 0.05 else 1)


SMALL = (3.3e-3, 0.43e-3, 1.2e-6, 0.45e-6)  # a model of 135 million weights
FLAT = (8e-3, 0.85e-3, 0.03e-6, 0.01e-6)  # sliding windows
LARGE = (0.25, 0.09, 5e-6, 2e-6)  # 8 billion weights: a token takes longer than the target
N_STAGES = 30


def decode(budget: Budget, machine: Machine, n_steps: int, parts: Callable[[int], list[Part]]) -> None:
    for i in range(n_steps):
        budget.observe(parts(i), [], machine.seconds(parts(i), []) * machine.noise())


def prefill_beside(
    budget: Budget, machine: Machine, decoding: list[Part], n_tokens: int, n_before: int = 0
) -> tuple[list[int], list[float]]:
    """Evaluate a prompt beside decoding; the rows of each step, and how much longer it took for them."""
    n_done, rows, stretches = n_before, [], []
    while n_done < n_before + n_tokens:
        n = budget.room(decoding).take(n_done, n_before + n_tokens - n_done).n
        parts = [Part(n_done, n)] if n else []
        seconds = machine.seconds(decoding, parts)
        budget.observe(decoding, parts, seconds * machine.noise())
        stretches.append(seconds / machine.seconds(decoding, []))
        rows.append(n)
        n_done += n
        assert len(rows) < 10 * n_tokens, "no end"
    return rows, sorted(stretches)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("costs", [SMALL, FLAT])
def test_steps_stay_within_the_stretch(costs: Any, seed: int) -> None:
    budget, machine = Budget(512, 0.1), Machine(*costs, seed)
    prefill_alone(budget, machine, 50)
    decode(budget, machine, 30, lambda i: [Part(50 + i, 1)])
    prefill_beside(budget, machine, [Part(80, 1)], 2000)
    _, stretches = prefill_beside(budget, machine, [Part(300, 1)], 2000)
    assert stretches[len(stretches) // 2] > 0.75 * STRETCH and stretches[int(0.99 * len(stretches))] < 1.2 * STRETCH


def stages_beside(
    budget: Budget, machine: Machine, decoding: list[Part], n_before: int, n_tokens: int
) -> tuple[list[Part], list[float]]:
    """Evaluate the last `n_tokens` of a prompt, stage by stage where that is how it goes."""
    n_done, n_chunk, n_stages_done = n_before, 0, 0
    parts, stretches = [], []
    while n_done < n_before + n_tokens:
        room = budget.room(decoding)
        left = n_before + n_tokens - n_done
        grant = room.go_on(n_done, n_chunk, n_stages_done) if n_chunk else room.take(n_done, left)
        part = Part(n_done, grant.n, grant.share)
        prefilled = [part] if grant.n else []
        seconds = machine.seconds(decoding, prefilled)
        budget.observe(decoding, prefilled, seconds * machine.noise())
        stretches.append(seconds / machine.seconds(decoding, []))
        assert len(stretches) < 30 * n_tokens, "no end"
        if not grant.n:
            continue
        parts.append(part)
        n_stages_done += N_STAGES - n_stages_done if grant.n_stages is None else grant.n_stages
        n_chunk = grant.n if n_stages_done < N_STAGES else 0
        if not n_chunk:
            n_done, n_stages_done = n_done + grant.n, 0
    return parts, sorted(stretches)


def test_where_one_row_takes_too_long_a_chunk_goes_stage_by_stage() -> None:
    """Behind many tokens a row of its own costs more than is left, and reads no less than a chunk."""
    machine, decoding = Machine(*SMALL), [Part(300, 1)]
    at_once, staged = Budget(512, 0.1), Budget(512, 0.1, N_STAGES)
    for budget in (at_once, staged):
        prefill_alone(budget, machine, 4000)
        decode(budget, machine, 30, lambda i: [Part(300 + i, 1)])
    stages_beside(staged, machine, decoding, 3600, 400)
    parts, stretches = stages_beside(staged, machine, decoding, 3600, 400)
    _, theirs = prefill_beside(at_once, machine, decoding, 400, n_before=3600)
    assert all(CHUNK_ROWS <= part.n < 2 * CHUNK_ROWS for part in parts[:-30])
    assert sum(part.share * part.n for part in parts) == pytest.approx(400)
    assert theirs[len(theirs) // 2] > 1.15 * STRETCH
    assert stretches[len(stretches) // 2] > 0.8 * STRETCH and stretches[int(0.99 * len(stretches))] < 1.15 * STRETCH
    assert sum(stretches) - len(stretches) < 0.65 * (sum(theirs) - len(theirs)), "it costs less than row by row"


def test_what_fits_goes_at_once() -> None:
    machine, decoding = Machine(*FLAT), [Part(50, 8)]
    budget = Budget(512, 0.1, N_STAGES)
    prefill_alone(budget, machine, 300)
    decode(budget, machine, 30, lambda i: decoding)
    for n in (1, 3):
        assert budget.room(decoding).take(0, n) == Grant(n)
    assert budget.room(decoding, n_prompts=100).take(0, 1000).n_stages is None


def test_one_chunk_a_step_goes_stage_by_stage() -> None:
    machine, decoding = Machine(*SMALL), [Part(300, 1)]
    budget = Budget(512, 0.1, N_STAGES)
    prefill_alone(budget, machine, 4000)
    decode(budget, machine, 30, lambda i: decoding)
    room = budget.room(decoding)
    first = room.take(3000, 500)
    assert first.n >= CHUNK_ROWS and first.n_stages is not None and 0 < first.share < 1
    assert not room.fits(3000) and room.go_on(3000, CHUNK_ROWS, 29) == NOTHING
    room = budget.room(decoding)
    last = room.go_on(3000, CHUNK_ROWS, N_STAGES - 1)
    assert last == Grant(CHUNK_ROWS, None, pytest.approx(1 / N_STAGES)) and room.take(0, 1) == Grant(1)
    assert budget.room([]).go_on(3000, CHUNK_ROWS, 3) == Grant(CHUNK_ROWS, None, pytest.approx(27 / 30)), "alone"


def test_the_steps_of_a_chunk_are_alike() -> None:
    """Of time for 7 stages 6 are used in each of 5 steps, rather than 7 in 4 and the last 2 in one."""
    machine, decoding = Machine(0.004, 0, 0, 0), [Part(300, 1)]
    budget = Budget(512, 0.1, N_STAGES)
    for n in (16, 32, 64) * 3:
        budget.observe([], [Part(0, n)], 0.01 * n / CHUNK_ROWS)
    decode(budget, machine, 30, lambda i: decoding)
    n_done, stages = 0, []
    while n_done < N_STAGES:
        grant = budget.room(decoding).go_on(0, CHUNK_ROWS, n_done)
        stages.append(N_STAGES - n_done if grant.n_stages is None else grant.n_stages)
        n_done += stages[-1]
    assert stages == [6] * 5


def test_few_rows_go_at_once_where_that_is_less_than_a_stage() -> None:
    budget, machine = Budget(512, 0.1, 2), Machine(0.004, 0.0008, 0, 0)
    prefill_alone(budget, machine, 300)
    decode(budget, machine, 30, lambda i: [Part(20, 1)])
    grant = budget.room([Part(20, 1)]).take(0, 100)
    assert 2 <= grant.n < CHUNK_ROWS // 2 and grant.n_stages is None


def test_prompts_go_on_by_a_stage_at_least() -> None:
    budget, machine = Budget(512, 0.1, 4), Machine(0.001, 0.09, 0, 0)
    prefill_alone(budget, machine, 60)
    decode(budget, machine, 20, lambda i: [Part(20, 1)])
    assert budget.room([Part(20, 1)]).take(0, 100) == Grant(CHUNK_ROWS, 1, 0.25)


def test_the_target_bounds_what_the_stretch_would_allow() -> None:
    costs = (0.06, 0.004, 0, 0)
    budget, machine = Budget(512, 0.1), Machine(*costs)
    prefill_alone(budget, machine, 100)
    decode(budget, machine, 20, lambda i: [Part(100, 1)])
    rows, _ = prefill_beside(budget, machine, [Part(100, 1)], 200)
    assert max(machine.seconds([Part(100, 1)], [Part(0, n)]) for n in rows) < 0.11


def test_prompts_go_on_where_one_token_takes_longer_than_the_target() -> None:
    budget, machine = Budget(512, 0.1), Machine(*LARGE)
    prefill_alone(budget, machine, 20)
    decode(budget, machine, 20, lambda i: [Part(20, 1)])
    rows, stretches = prefill_beside(budget, machine, [Part(20, 1)], 100)
    assert rows.count(0) <= 2 + len(rows) // PROBE_INTERVAL and stretches[-1] < 1.6


def prefill_alone(budget: Budget, machine: Machine, n_tokens: int) -> list[float]:
    n_done, times = 0, []
    while n_done < n_tokens:
        n = budget.room([]).take(n_done, n_tokens - n_done).n
        assert n > 0
        times.append(machine.seconds([], [Part(n_done, n)]))
        budget.observe([], [Part(n_done, n)], times[-1] * machine.noise())
        n_done += n
    return times


def test_steps_of_prefill_alone_are_long_but_do_not_keep_others_waiting() -> None:
    budget, machine = Budget(512, 0.1), Machine(*SMALL)
    prefill_alone(budget, machine, 2000)
    times = prefill_alone(budget, machine, 2000)
    assert max(times) < 1.5 * ALONE_S and sorted(times)[len(times) // 2] > 0.6 * ALONE_S


def test_without_a_target_nothing_is_bounded() -> None:
    budget, machine = Budget(512, 0), Machine(*SMALL)
    decode(budget, machine, 5, lambda i: [Part(20, 1)])
    assert budget.room([Part(20, 1)]).take(0, 1000).n == 511
    assert budget.room([]).take(0, 1000).n == 512


def test_where_many_wait_for_few_prompts_have_more() -> None:
    budget, machine = Budget(512, 0.1), Machine(*FLAT)
    prefill_alone(budget, machine, 300)
    decode(budget, machine, 20, lambda i: [Part(20, 1)])
    prefill_beside(budget, machine, [Part(20, 1)], 100)
    one, four, many = (budget.room([Part(20, 1)], n_prompts).take(0, 1000).n for n_prompts in (1, 4, 100))
    assert 3 * one < four < many
    assert machine.seconds([Part(20, 1)], [Part(0, many)]) < 0.12, "the target holds"


def test_the_machine_may_become_slower() -> None:
    budget, machine = Budget(512, 0.1), Machine(*FLAT)
    prefill_alone(budget, machine, 300)
    decode(budget, machine, 20, lambda i: [Part(20, 1)])
    before = prefill_beside(budget, machine, [Part(20, 1)], 2000)[0][-10:]
    slower = Machine(*(3 * cost for cost in FLAT))
    after = prefill_beside(budget, slower, [Part(20, 1)], 9000)[0][-10:]
    assert sorted(after)[5] == pytest.approx(sorted(before)[5], abs=4)


def test_several_prompts_share_a_step() -> None:
    budget, machine = Budget(512, 0.1), Machine(*FLAT)
    prefill_alone(budget, machine, 300)
    decode(budget, machine, 20, lambda i: [Part(20, 4)])
    prefill_beside(budget, machine, [Part(20, 4)], 100)
    whole = budget.room([Part(20, 4)]).take(0, 1000).n
    room = budget.room([Part(20, 4)])
    assert whole > 4 and room.take(0, 3).n == 3 and room.fits(0)
    assert room.take(0, 1000).n == pytest.approx(whole - 3, abs=1) and not room.fits(0) and room.take(0, 1000).n == 0


def test_vectors_have_the_same_room() -> None:
    budget, machine = Budget(512, 0.1), Machine(*FLAT)
    decode(budget, machine, 20, lambda i: [Part(20, 8)])
    for n in (64, 512, 100, 8, 16):
        budget.observe_vectors([Part(0, n)], machine.seconds([], [Part(0, n)]))
    n = budget.vector_rows([Part(20, 8)], 0)
    base_s = machine.seconds([Part(20, 8)], [])
    assert n >= 1 and base_s + machine.seconds([], [Part(0, n)]) < 1.15 * STRETCH * base_s
    assert budget.vector_rows([], 0) > 100


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 5000), st.floats(0, 100)), min_size=1, max_size=60))
def test_whatever_is_measured_costs_are_finite_and_grow_with_rows(steps: list[tuple[int, int, float]]) -> None:
    costs = Costs((1, 16, 1000), (0.3, 1, 0.1), main=1)
    for n, n_before, seconds in steps:
        costs.observe((1, n, n_before), seconds)
    predicted = [costs.seconds((1, n, 100)) for n in (1, 10, 100)]
    assert all(0 <= value < 1e9 for value in predicted) and predicted == sorted(predicted)


def test_few_kinds_are_remembered() -> None:
    costs = Costs((1, 16), (0.3, 1), main=1)
    for i in range(3 * N_KINDS):
        for j in range(3):
            costs.observe((1 << (i % 20), 1 << (i // 20 + j)), 1.0)
    assert len(costs._kinds) == N_KINDS


def test_a_long_prompt_does_not_hold_up_decoding(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_batch=512, n_parallel=2)
    engine = runner.engine
    first = runner.submit(options={"num_predict": 300})
    for _ in range(20):
        runner.batch.step()
    runner.submit("y" * 600, options={"num_predict": 1})
    gaps = []
    while engine.n_evaluated < 600:
        before_s = engine.now_s
        runner.batch.step()
        gaps.append(engine.now_s - before_s)
    assert max(gaps) <= 2.5 * 0.0045 and sum(gaps) < 2
    runner.run()
    assert runner.result(first).text == "abcdef" * 100

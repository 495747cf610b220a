"""A KV cache that is too small for all: the youngest gives way, goes on later, and says the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.engine import Engine, KVCacheFullError
from localllm.gguf import open_gguf
from localllm.messages import Prefill, Ready
from localllm.runner.batch import Batch
from localllm.runner.budget import Room
from localllm.runner.model import Model
from localllm.runner.service import Preparation
from localllm.runner.templates import Templates
from localllm.runner.vectors import VectorJob
from localllm.tokenizer import load_tokenizer
from tests.runner.conftest import Runner

pytestmark = pytest.mark.usefixtures("n_stages")

SIZES = {"n_ctx": 64, "n_batch": 16}


def by_all_tokens(tokens: Sequence[int]) -> np.ndarray:
    """Logits that any other token before would change."""
    logits = np.zeros(512, np.float32)
    logits[ord("a") + sum((i + 1) * token for i, token in enumerate(tokens)) % 3] = 20
    return logits


@pytest.fixture
def small_runner(script_runner: Any) -> Callable[..., Any]:
    """A runner whose answers depend on every token before."""

    def make(**sizes: Any) -> Any:
        runner = script_runner(**{**SIZES, **sizes})
        n_vocab = runner.engine.n_vocab
        runner.engine.logits_of = lambda tokens: by_all_tokens(tokens)[:n_vocab]
        return runner

    return make


def n_preemptions(runner: Any) -> int:
    runner.batch.report()
    return sum(m.counts.preemptions for m in runner.sent if m.type == "figures")


def test_the_youngest_gives_way_and_goes_on(small_runner: Any) -> None:
    alone = small_runner()
    prompts = [letter * 20 for letter in "uvw"]
    expected = [alone.generate(prompt, options={"num_predict": 40}) for prompt in prompts]
    runner = small_runner(n_tokens=100, n_parallel=3)
    ids = [runner.submit(prompt, options={"num_predict": 40}) for prompt in prompts]
    runner.run()
    assert n_preemptions(runner) > 0
    for request_id, wanted in zip(ids, expected, strict=True):
        result = runner.result(request_id)
        assert result.text == wanted.text
        stats, theirs = result.done.stats, wanted.done.stats
        assert (stats.prompt_eval_count, stats.eval_count) == (theirs.prompt_eval_count, theirs.eval_count)
        assert stats.prompt_eval_cached_count == 0
        assert sum(isinstance(m, Prefill) for m in result.messages) == 1
    ends = [message.id for message in runner.sent if message.type == "done"]
    assert ends[0] == ids[0], "who came first ends first"
    assert runner.engine.open_sequences == []


def test_what_gave_way_waits_until_there_is_room(small_runner: Any) -> None:
    runner = small_runner(n_tokens=70, n_parallel=2)
    for prompt in ("u" * 20, "v" * 20):
        runner.submit(prompt, options={"num_predict": 40})
    runner.run()
    assert n_preemptions(runner) <= 2


def test_who_is_canceled_while_giving_way_does_not_go_on(small_runner: Any) -> None:
    runner = small_runner(n_tokens=70, n_parallel=2)
    ids = [runner.submit(letter * 20, options={"num_predict": 40}) for letter in "uv"]
    step = runner.engine.step

    def cancel_where_full(entries: Any) -> Any:
        try:
            return step(entries)
        except KVCacheFullError:
            runner.batch.cancel(ids[1])  # by another thread, while this one looks for who gives way
            raise

    runner.engine.step = cancel_where_full
    runner.run()
    assert n_preemptions(runner) == 1
    assert runner.result(ids[0]).done.stats.eval_count == 40
    assert all(message.type != "done" for message in runner.result(ids[1]).messages)
    assert runner.engine.open_sequences == []


@pytest.fixture
def alone_runner(small_runner: Any) -> Any:
    return small_runner()


requests = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 50), st.integers(1, 70), st.booleans(), st.integers(0, 25)),
    min_size=1,
    max_size=8,
)


@given(requests, st.integers(64, 160), st.integers(1, 5), st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_comes_answers_are_those_of_requests_alone(
    small_runner: Any,
    alone_runner: Any,
    requests: list[tuple[int, int, int, bool, int]],
    n_tokens: int,
    n_parallel: int,
    with_drafts: bool,
) -> None:
    """A request: steps since the last one, tokens of its prompt and answer, background or not, canceled if > 20."""
    runner = small_runner(n_tokens=n_tokens, n_parallel=n_parallel)
    expected, canceled, ids = {}, {}, []
    for i, (gap, n_prompt, n_predict, is_background, cancel_after) in enumerate(requests):
        prompt = "".join(chr(97 + (i * 7 + j // 9) % 26) for j in range(n_prompt))
        options = {"num_predict": n_predict, "num_keep": 4}
        expected[i] = alone_runner.generate(prompt, options=options)
        for _ in range(gap):
            runner.batch.step()
        options |= {"draft_num_predict": -1} if with_drafts else {}
        ids.append(runner.submit(prompt, options=options, is_interactive=not is_background))
        if cancel_after > 20:
            canceled[i] = ids[-1]
    for request_id in canceled.values():
        runner.batch.cancel(request_id)
    runner.run(max_steps=3000)
    for i, request_id in enumerate(ids):
        if i not in canceled:
            assert runner.result(request_id).text == expected[i].text
            assert runner.result(request_id).done.truncated == expected[i].done.truncated
    assert runner.engine.open_sequences == []


def vector_job(engine: Any, inputs: list[list[int]], rows: list[Any]) -> VectorJob:
    """A job for vectors, of an engine that has none: what comes of it goes to `rows`."""
    engine.pooling, engine.is_bidirectional = "last", False
    engine.step_hidden = engine.step
    return VectorJob("job", inputs, engine, rows.extend, rows.append)


def test_a_job_and_a_prompt_take_turns_beside_answers(small_runner: Any) -> None:
    runner = small_runner(n_ctx=4096, n_batch=512, n_parallel=2)
    engine, rows = runner.engine, []
    runner.submit("u" * 20, options={"num_predict": 400})
    for _ in range(40):
        runner.batch.step()
    runner.submit("v" * 500, options={"num_predict": 1})
    job = vector_job(engine, [[65] * 500], rows)
    runner.batch.submit_job(job)
    gaps = []
    while not (job.is_done and len(runner.batch._active) == 1 and not runner.batch._waiting):
        before_s, start = engine.now_s, len(engine.steps)
        runner.batch.step()
        gaps.append(engine.now_s - before_s)
        sizes = [sum(len(tokens) for _, tokens, _ in step) for step in engine.steps[start:]]
        assert len(sizes) == 1 or sizes[0] == 1, "prefill and vectors in one turn"
    assert max(gaps[20:]) < 3 * 0.0045 and len(rows) == 1


@pytest.mark.parametrize("order", ["job first", "job last"])
def test_jobs_take_part(small_runner: Any, order: str) -> None:
    runner = small_runner(n_tokens=64, n_parallel=2)
    engine, rows = runner.engine, []
    job = vector_job(engine, [[65] * 40, [66] * 40], rows)
    if order == "job first":
        runner.batch.submit_job(job)
        for _ in range(2):
            runner.batch.step()
    ids = [runner.submit(letter * 20, options={"num_predict": 30}) for letter in "uv"]
    if order == "job last":
        for _ in range(8):
            runner.batch.step()
        runner.batch.submit_job(job)
    for _ in range(400):
        runner.batch.step()
    assert job.is_done and len(rows) == 2 and not any(isinstance(row, Exception) for row in rows)
    alone = small_runner()
    for request_id, letter in zip(ids, "uv", strict=True):
        assert runner.result(request_id).text == alone.generate(letter * 20, options={"num_predict": 30}).text
    assert engine.open_sequences == []


def test_a_job_that_nobody_waits_for_keeps_no_room_from_who_does(small_runner: Any) -> None:
    runner = small_runner(n_tokens=90, n_parallel=2)
    engine, rows = runner.engine, []
    job = vector_job(engine, [[65] * 60, [66] * 10], rows)
    job.is_interactive = False
    runner.batch.submit_job(job)
    for _ in range(3):
        runner.batch.step()
    assert engine.n_pages_free == 42
    ids = [runner.submit(letter * 20, options={"num_predict": 20}) for letter in "uv"]
    for _ in range(12):
        runner.batch.step()
    assert len(runner.batch._active) == 2
    runner.run()
    assert all(runner.result(request_id).done.stats.eval_count == 20 for request_id in ids) and not job.is_done
    for _ in range(20):
        runner.batch.step()
    assert job.is_done and len(rows) == 2 and engine.open_sequences == []


@pytest.mark.parametrize("n_beside", [0, 1])
def test_a_job_that_nobody_waits_for_gives_way_to_one_that_somebody_waits_for(small_runner: Any, n_beside: int) -> None:
    runner = small_runner(n_tokens=80 + 40 * n_beside, n_parallel=1)
    engine, rows, theirs = runner.engine, [], []
    job, background = (vector_job(engine, [[65 + i] * 60], out) for i, out in enumerate((rows, theirs)))
    background.is_interactive = False
    runner.batch.submit_job(background)
    for _ in range(3):
        runner.batch.step()
    for _ in range(n_beside):
        runner.submit("u" * 4, options={"num_predict": 200})
    runner.batch.submit_job(job)
    for _ in range(100):
        runner.batch.step()
        assert background.is_done <= job.is_done
    assert len(rows) == 1 and not isinstance(rows[0], Exception)
    for _ in range(400):
        runner.batch.step()
    assert len(theirs) == 1 and not isinstance(theirs[0], Exception) and engine.open_sequences == []


def test_what_cannot_fit_alone_is_an_error_with_the_numbers(small_runner: Any) -> None:
    runner = small_runner(n_tokens=30)
    error = runner.generate("u" * 40).error
    assert "KV cache is full" in error.error and any(number in error.error for number in ("16", "14"))
    assert len(runner.generate("v" * 10, options={"num_predict": 5}).text) == 5


def test_with_the_engine_answers_are_the_same_bit_for_bit(
    tmp_path: Path, tiny_models: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where prompts beside answers go through two layers a step."""
    tiny_models.random_model(tmp_path / "m.gguf", n_layers=5)
    monkeypatch.setattr(Room, "_n_fitting", lambda room, n_before, n_most: n_most if room._is_alone else 0)
    monkeypatch.setattr(Room, "_n_stages_fitting", lambda room, n_before, n, n_most: min(2, n_most))
    chunks: set[tuple[int, int]] = set()

    def run(n_pages: int, n_parallel: int) -> tuple[list[Any], int]:
        with open_gguf([str(tmp_path / "m.gguf")]) as gguf:
            engine = Engine.load(gguf, n_ctx=256, n_batch=64, n_slots=n_parallel + 2, n_pages=n_pages, n_threads=2)
            tokenizer = load_tokenizer(gguf)
            runner = Runner.__new__(Runner)
            runner.tokenizer, runner.engine, runner.sent, runner.n_requests = tokenizer, engine, [], 0  # type: ignore
            model = Model("m", engine, tokenizer, Templates(gguf.metadata, None, "", ""), n_parallel, Ready(256))
            runner.preparation = Preparation(model, runner.sent.append)
            runner.batch = Batch(engine, n_parallel, runner.sent.append)
            step = engine.step

            def noted(entries: Any) -> Any:
                results = step(entries)
                chunks.update((e.seq.n_chunk, e.seq.n_stages_done) for e in entries if e.seq.n_chunk)
                return results

            monkeypatch.setattr(engine, "step", noted)
            options = {"num_predict": 150, "temperature": 1.0, "ignore_eos": True, "draft_num_predict": -1}
            ids = [
                runner.submit("hello world " * (i + 3), options={**options, "seed": i}, logprobs=True) for i in range(5)
            ]
            runner.run()
            results = [runner.result(request_id) for request_id in ids]
            assert engine.n_pages_free == engine.n_pages
            engine.close()
            return [(r.text, r.logprobs) for r in results], n_preemptions(runner)

    alone, none = run(n_pages=64, n_parallel=1)
    assert not chunks
    together, some = run(n_pages=12, n_parallel=5)
    assert together == alone and none == 0 < some
    assert {n_stages for _, n_stages in chunks} == {2, 4}

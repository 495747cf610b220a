"""Answers with guessed tokens, right and wrong, are those without, in everything that is told of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.messages import Chunk, Done, Message, Prefill
from localllm.runner.generation import Generation
from localllm.runner.speculation import DraftModel, Speculation
from localllm.runner.speculation.costs import StepCosts
from localllm.runner.speculation.worth import Worth

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Al", "Bo", "Alberta"]}, "ages": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "ages"],
    "additionalProperties": False,
}
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.5, "top_k": 0, "top_p": 1.0},
    {"temperature": 0, "repeat_penalty": 1.6, "presence_penalty": 0.5, "frequency_penalty": 0.4, "repeat_last_n": 12},
    {"temperature": 0.9, "mirostat": 2},
    {"temperature": 0.9, "mirostat": 1},
    {"temperature": 1.0, "dry_multiplier": 2.0, "dry_allowed_length": 1, "xtc_probability": 0.5, "typical_p": 0.9},
]


class NoGuesses:
    """In place of what guesses."""

    def draft(self, decoding: Sequence[Generation], n_rows: int) -> None:
        pass

    def timing(self, planned: Any) -> Any:
        return contextlib.nullcontext()


class Guesses(NoGuesses):
    """Random beginnings of what will come, with random faults; `plain` are the answers without guesses."""

    def __init__(self, plain: dict[str, Sequence[int]], seed: int, faults: float) -> None:
        self.plain, self.faults = plain, faults
        self.random = np.random.default_rng(seed)

    def draft(self, decoding: Sequence[Generation], n_rows: int) -> None:
        for generation in decoding:
            generation.drop_guesses()
            room = min(generation.n_draft_at_most, n_rows - sum(len(g.pending) for g in decoding))
            n = int(self.random.integers(0, max(room, 0) + 1))
            coming = self.plain[generation.id][len(generation.generated) :]
            tokens = [*coming, *[7] * n][:n]
            generation.guess([(t + 1) % 200 if self.random.random() < self.faults else t for t in tokens])


def comparable(messages: list[Message]) -> list[Message]:
    """Without what no two runs have in common."""
    names = ("prompt_eval_duration_ns", "eval_duration_ns", "prompt_eval_cached_count")
    stats: dict[str, Any] = dict.fromkeys((*names, "draft_count", "draft_accepted_count"), 0)
    told = [m for m in messages if not isinstance(m, Prefill)]
    return [replace(m, stats=replace(m.stats, **stats)) if isinstance(m, Done) else m for m in told]


def random_logits(runner: Any) -> Any:
    """Logits that depend on the last three tokens, so that texts repeat themselves; ends are rare."""

    def logits_of(tokens: Sequence[int]) -> np.ndarray:
        logits = np.random.default_rng([11, *tokens[-3:]]).normal(0, 3, runner.tokenizer.n_vocab).astype(np.float32)
        logits[256:263] = -20
        logits[257] = 4  # <|eos|>
        return logits

    return logits_of


def drafting(runner: Any, faults: float, **sizes: int) -> Speculation:
    """With a draft model whose steps take no time, so that it pays; some of its logits are others."""
    engine = runner.engine

    def logits_of(tokens: Sequence[int]) -> np.ndarray:
        random = np.random.default_rng([5, *tokens[-4:]])
        return np.roll(engine.logits_of(tokens), int(random.random() < faults)).astype(np.float32)

    settings = {"n_ctx": 4096, "n_batch": 128, "n_slots": 4, "n_tokens": 4096} | sizes
    runner.draft = type(engine)(engine.n_vocab, logits_of, **settings)
    return Speculation(DraftModel(runner.draft, engine.n_vocab, engine.clock), engine.clock)


class Run:
    """The requests of one case, submitted together; others come and go at the given steps."""

    def __init__(self, make: Any, requests: list[dict[str, Any]], pauses: frozenset[int], **sizes: Any) -> None:
        self.requests, self.pauses, self.make, self.sizes = requests, pauses, make, sizes

    def __call__(self, speculation: Any) -> tuple[dict[str, list[Message]], dict[str, list[int]], list[Any]]:
        runner = self.make(n_parallel=len(self.requests) + 1, **self.sizes)
        runner.engine.logits_of = random_logits(runner)
        runner.batch._speculation = speculation(runner) if callable(speculation) else speculation
        ids = [runner.submit("go<|assistant|>", **fields) for fields in self.requests]
        generations = {g.id: g for g in runner.batch._waiting}
        for step in range(2000):
            if step in self.pauses:
                runner.submit("stop<|assistant|>", options={"num_predict": 1, "draft_num_predict": 0})
            if not any(g.id in ids for g in (*runner.batch._active, *runner.batch._waiting)):
                break
            runner.batch.step()
        messages = {i: comparable(runner.result(i).messages) for i in ids}
        assert all(isinstance(messages[i][-1], Done) for i in ids), messages
        held = [seq.tokens for seq in runner.engine.closed_sequences]
        return messages, {i: list(generations[i].generated) for i in ids}, held


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_tells_that_tokens_were_guessed(script_runner: Any, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 2), label="requests")
    requests = []
    for _ in range(n):
        options = {
            **data.draw(st.sampled_from(SAMPLING)),
            "seed": data.draw(st.integers(0, 5)),
            "num_predict": data.draw(st.sampled_from([1, 2, 9, 60, 90])),
            "stop": data.draw(st.sampled_from([[], ["e"], ["zq", "\x05"]])),
            "draft_num_predict": -1,
        }
        fields: dict[str, Any] = {
            "options": options,
            "logprobs": data.draw(st.booleans()),
            "top_logprobs": data.draw(st.integers(0, 2)),
            "shift": data.draw(st.booleans()),
            "is_interactive": data.draw(st.booleans()),
        }
        if data.draw(st.booleans(), label="constrained"):
            fields["format"] = data.draw(st.sampled_from([SCHEMA, "json"]))
        requests.append(fields)
    n_ctx = data.draw(st.sampled_from([24, 48, 4096]), label="n_ctx")
    run = Run(script_runner, requests, data.draw(st.frozensets(st.integers(1, 20), max_size=2)), n_ctx=n_ctx)
    messages, tokens, held = run(NoGuesses())
    guesses = Guesses(tokens, data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])))
    faults = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    sizes = data.draw(st.sampled_from([{}, {"n_ctx": 30}, {"n_tokens": 40}, {"n_slots": 1}]))
    for speculation in (guesses, Speculation(), lambda runner: drafting(runner, faults, **sizes)):
        found_messages, found_tokens, found_held = run(speculation)
        assert found_tokens == tokens
        assert found_messages == messages
        if not run.pauses:
            assert sorted(found_held) == sorted(held)


def test_right_guesses_save_steps_and_are_counted(script_runner: Any) -> None:
    options = {"num_predict": 60, "draft_num_predict": -1, "temperature": 1, "seed": 3, "ignore_eos": True}
    run = Run(script_runner, [{"options": options}], frozenset())
    _, tokens, _ = run(NoGuesses())
    runner = script_runner()
    runner.engine.logits_of = random_logits(runner)
    runner.batch._speculation = Guesses(tokens, 1, 0.0)
    runner.submit("go<|assistant|>", **run.requests[0])
    (generation,) = runner.batch._waiting
    runner.run()
    assert list(generation.generated) == tokens["1"]
    assert len(runner.engine.steps) <= 10
    assert generation.n_accepted == generation.n_drafted == 60 - len(runner.engine.steps)
    assert 0 < generation.n_drafts < len(runner.engine.steps)
    stats = runner.result("1").done.stats
    assert (stats.draft_count, stats.draft_accepted_count) == (generation.n_drafted, generation.n_accepted)
    runner.batch.report()
    counts = runner.sent[-1].counts
    assert (counts.drafts, counts.draft_tokens) == (generation.n_drafts, generation.n_drafted)
    assert counts.draft_tokens_accepted == generation.n_accepted


@pytest.mark.parametrize("permitted, most", [(0, 0), (3, 3), (-1, 31)])
def test_the_option_bounds_drafts(script_runner: Any, permitted: int, most: int) -> None:
    runner = script_runner(loop=True)
    runner.submit(options={"num_predict": 40, "draft_num_predict": permitted})
    runner.batch.step()
    (generation,) = runner.batch._active
    assert generation.n_draft_at_most == most


def test_texts_that_repeat_themselves_are_guessed(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    plain = runner.generate(options={"num_predict": 200})
    n_steps = len(runner.engine.steps)
    guessed = runner.generate(options={"num_predict": 200, "draft_num_predict": -1})
    assert comparable(guessed.messages)[0] == replace(comparable(plain.messages)[0], id="2")
    assert [c.text for c in guessed.chunks if isinstance(c, Chunk)] == plain.pieces
    assert len(runner.engine.steps) - n_steps < n_steps / 2


@pytest.mark.parametrize("n_requests, is_bounded", [(1, False), (3, True)])
def test_nobody_waits_long_for_the_guesses_of_others(script_runner: Any, n_requests: int, is_bounded: bool) -> None:
    runner = script_runner(loop=True, n_parallel=n_requests)
    for _ in range(n_requests):
        runner.submit(options={"num_predict": 400, "draft_num_predict": -1})
    longest_s = 0.0
    while len(runner.batch._active) == n_requests or not runner.engine.steps:
        before_s = runner.engine.now_s
        runner.batch.step()
        longest_s = max(longest_s, runner.engine.now_s - before_s)
    plain_s = 0.004 + 0.0005 * n_requests
    assert (longest_s < 2.5 * plain_s) == is_bounded


def test_a_canceled_request_leaves_no_guesses_behind(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    request = runner.submit(options={"num_predict": 2000, "draft_num_predict": -1})
    for _ in range(30):
        runner.batch.step()
    (generation,) = runner.batch._active
    assert generation.n_accepted > 0
    evaluated = [*generation.prompt.tokens, *generation.generated]
    runner.batch.cancel(request)
    runner.run()
    (closed,) = runner.engine.closed_sequences
    assert closed.tokens == tuple(evaluated[: len(closed.tokens)])


def test_an_error_among_the_guesses_ends_one_request(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_parallel=2)
    scripted = runner.engine.logits_of
    runner.engine.logits_of = lambda tokens: scripted(tokens) * (np.nan if len(tokens) == 120 else 1)
    failing = runner.submit(options={"num_predict": 300, "draft_num_predict": -1})
    fine = runner.submit(options={"num_predict": 100, "draft_num_predict": -1})
    runner.run()
    assert runner.result(failing).error.kind == "SamplingError"
    assert runner.result(fine).text == ("abcdef" * 34)[:200]
    assert len("".join(runner.result(failing).pieces)) == 2 * 119


def test_a_draft_model_that_knows_saves_steps_and_gives_back_what_it_holds(script_runner: Any) -> None:
    options = {"num_predict": 60, "draft_num_predict": -1, "temperature": 0, "ignore_eos": True}
    _, tokens, _ = Run(script_runner, [{"options": options}], frozenset())(NoGuesses())
    runner = script_runner(n_parallel=2)
    runner.engine.logits_of = random_logits(runner)
    runner.batch._speculation = drafting(runner, 0.0)
    runner.submit("go<|assistant|>", options=options)
    (generation,) = runner.batch._waiting
    runner.run()
    assert list(generation.generated) == tokens["1"]
    assert len(runner.engine.steps) < 30
    assert generation.n_accepted >= 30
    runner.generate("go<|assistant|>", options={"num_predict": 3})
    assert runner.draft.open_sequences == []


def test_a_draft_model_that_fails_takes_nothing_with_it(script_runner: Any) -> None:
    runner = script_runner(loop=True)
    runner.batch._speculation = drafting(runner, 0.0)

    def fail(entries: Any) -> None:
        raise RuntimeError("of the draft model")

    runner.draft.before_step = fail
    result = runner.generate(options={"num_predict": 40, "draft_num_predict": -1})
    assert result.text == ("abcdef" * 14)[:80]


def test_a_draft_model_that_is_never_right_is_asked_no_more(script_runner: Any) -> None:
    runner = script_runner()
    runner.engine.logits_of = random_logits(runner)
    runner.batch._speculation = drafting(runner, 1.0)
    options = {"num_predict": 600, "draft_num_predict": -1, "temperature": 1, "top_k": 0, "ignore_eos": True}
    runner.generate("go<|assistant|>", options=options)
    assert 0 < len(runner.draft.steps) < 150
    asked_late = [step for step in runner.draft.steps[-40:] if len(step[0][0].tokens) == 0]
    assert asked_late == []


@pytest.mark.parametrize("share, is_asked", [(2.0, False), (0.9, False), (0.1, True)])
def test_a_draft_model_is_asked_for_what_pays(script_runner: Any, share: float, is_asked: bool) -> None:
    """One as slow as the model itself never pays, one of little cost does where half its tokens come."""
    costs = StepCosts()
    costs.note(1, 0.01)
    model = DraftModel(script_runner().engine, 10)
    model.costs.note(1, 0.01 * share)
    worth = Worth(model, costs)
    n = worth.n_tokens(1)
    assert (n > 0) == is_asked
    assert 0 <= n <= 16

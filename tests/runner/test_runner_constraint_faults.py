"""Constraints at their edges: nothing that was asked for is left out in silence, and what cannot be is an error of its
own request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernels_cpu.compile import Routine
from localllm import options as model_options
from localllm.grammar import constraint, vocabulary
from localllm.grammar.lazy import LazyStart
from localllm.messages import GenerateRequest
from localllm.runner import constrained
from localllm.runner.constrained import Constrained
from localllm.runner.constraints import Frame, compiler
from localllm.runner.generation import MAX_DECODED, Generation
from localllm.runner.service import Preparation

USER = {"role": "user", "content": "go"}
CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}CALLS<|end|>{% endfor %}<|assistant|>"
HERMES = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + TURNS.replace("CALLS", CALLS)


@pytest.mark.parametrize(("text", "answer"), [("[]x", "[]"), ("{}", "{}"), ("true!", "true")])
def test_an_empty_schema_is_any_json(script_runner: Any, text: str, answer: str) -> None:
    assert script_runner(list(text)).generate(format={}).text == answer


@pytest.mark.parametrize("value", [False, [], 0, True, ["json"]])
def test_what_is_no_format_is_refused(script_runner: Any, value: Any) -> None:
    error = script_runner().generate(format=value).error
    assert (error.kind, "format: expected" in error.error) == ("RequestError", True)


def test_a_choice_that_is_no_text_is_refused(script_runner: Any) -> None:
    assert "half a surrogate pair" in script_runner().generate(format={"choice": ["a", "\ud800"]}).error.error


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}


@pytest.mark.parametrize("parameters", [[], False, 0, "object"])
def test_parameters_that_are_no_schema_are_refused(script_runner: Any, parameters: Any) -> None:
    result = script_runner(template=HERMES).chat([USER], tools=[tool(parameters)])
    assert (result.error.kind, "expected a schema" in result.error.error) == ("RequestError", True)


def test_tools_of_one_name_are_refused(script_runner: Any) -> None:
    loose = {"type": "function", "function": {"name": "f", "parameters": {}}}
    error = script_runner(template=HERMES).chat([USER], tools=[tool({"required": ["x"]}), loose]).error
    assert (error.kind, '"f" is the name of several' in error.error) == ("RequestError", True)


def test_calls_after_a_raw_prompt_are_refused(script_runner: Any) -> None:
    error = script_runner(template=HERMES).generate(tools=[tool({})]).error
    assert (error.kind, "raw prompt" in error.error) == ("RequestError", True)


def test_a_constraint_that_cannot_begin_is_refused_before_the_answer(script_runner: Any) -> None:
    preparation = script_runner().preparation
    limited = preparation._constraints._make_vocabulary()
    pieces = [b"" if piece == b"\xc3" else piece for piece in limited._pieces]
    preparation._constraints._vocabulary = lambda: vocabulary.Vocabulary(pieces, limited.eos_ids)
    request = GenerateRequest("1", "generate", format={"choice": ["\u00e9"]})
    with pytest.raises(compiler.RequestError, match="cannot begin"):
        preparation._constraints.of(request, Frame())


@pytest.mark.parametrize("seed", range(3))
def test_text_that_is_forced_for_several_steps_is_not_left_to_the_model(script_runner: Any, seed: int) -> None:
    runner = script_runner(["name", '","', "true", "am", "spam"])
    n_vocab = runner.tokenizer.n_vocab
    runner.engine.logits_of = lambda tokens: np.random.default_rng(len(tokens)).normal(0, 3, n_vocab).astype(np.float32)
    wanted = ["name", "spam"] * MAX_DECODED
    found = []
    for logprobs in (False, True):
        options = model_options.resolve({}, {"temperature": 1.0, "seed": seed})
        request = GenerateRequest(
            f"{logprobs}", "generate", "p", raw=True, options=options, logprobs=logprobs, format={"const": wanted}
        )
        generation = runner.preparation.handle(request)
        assert isinstance(generation, Generation)
        runner.batch.submit(generation)
        runner.run()
        assert json.loads(runner.result(request.id).text) == wanted
        found.append(generation._generated)
    text = json.dumps(wanted, separators=(",", ":"))
    assert found[0] == found[1] == runner.tokenizer.encode(text, add_special=False)


def test_forced_text_has_no_tokens_that_are_never_sampled(script_runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = script_runner(["spam"])
    tokenizer = runner.tokenizer
    pieces = [tokenizer.piece(token) for token in range(tokenizer.n_vocab)]
    quote, spam = pieces.index(b'"'), pieces.index(b"spam")
    tokenizer.suppress_ids = frozenset((spam,))
    runner.preparation = Preparation(runner.model, runner.sent.append)
    monkeypatch.setattr(
        Constrained, "_tokens_of", lambda self, text, before: [quote, spam, quote] if text == b'"spam"' else []
    )
    assert runner.generate(format={"const": "spam"}).text == '"spam"'


def test_what_constraints_need_is_compiled_at_once_and_before_the_steps(
    script_runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[Routine]] = []
    monkeypatch.setattr(compiler, "compile_all", asked.append)
    assert script_runner(["1"]).generate(format={"choice": ["1"]}).text == "1"
    (routines,) = asked
    used = {
        value
        for module in (constraint, vocabulary, constrained)
        for value in vars(module).values()
        if isinstance(value, Routine)
    }
    assert len(used) == 5 and set(routines) == used


def test_a_lazy_grammar_compiles_its_triggers_once(script_runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = script_runner(["a", "<f>", "b"])
    lazy = {"grammar": 'root ::= "<f>" "x"', "grammar_lazy": True, "grammar_triggers": [{"type": 1, "value": "<f>"}]}
    request = GenerateRequest("1", "generate", **lazy)
    found = runner.preparation._constraints.of(request, Frame())

    def fail(*args: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(LazyStart, "__init__", fail)
    first, second = found.constraint.matcher(), found.constraint.matcher()
    tokens = runner.tokenizer.encode("a<f>", add_special=False)
    assert all(first.accept(token) for token in tokens)
    assert first.forced_bytes() == b"x" and second.forced_bytes() == b"" and second.is_complete()


@pytest.mark.parametrize("thinking", ["", "<think>hm</think>", "<think>hm</think>\n\n"])
def test_content_that_has_been_begun_after_thinking_goes_on(script_runner: Any, thinking: str) -> None:
    thought = "{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}CALLS"
    template = TURNS.replace("{{ m.content }}CALLS", thought.replace("CALLS", ""))
    runner = script_runner(["no", "yes"], template=template)
    begun = [USER, {"role": "assistant", "content": thinking + "ye"}]
    assert runner.chat(begun, format={"choice": ["yes"]}).text == "s"
    whole = [USER, {"role": "assistant", "content": "<think>hm</think>"}]
    assert runner.chat(whole, format={"choice": ["yes"]}).text == "yes"

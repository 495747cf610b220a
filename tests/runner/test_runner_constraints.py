"""Answers that are constrained: what is accepted and refused, where a constraint begins and ends, what it forces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localllm import options as model_options
from localllm.errors import RequestError
from localllm.messages import GenerateRequest
from localllm.runner.constraints import Frame
from localllm.runner.constraints.vocabulary import pieces_of
from localllm.runner.generation import Generation

USER = {"role": "user", "content": "go"}
NAME_AGE = {
    "type": "object",
    "properties": {"name": {"enum": ["Al", "Bo"]}, "age": {"enum": [1, 2, 30]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["c", "f"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    },
}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
SEEK = {"type": "function", "function": {"name": "seek", "parameters": {"type": "object"}}}
CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
THOUGHT = "{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}"
TURNS = "{% for m in messages %}<|{{ m.role }}|>THOUGHT{{ m.content }}CALLS<|end|>{% endfor %}<|assistant|>"
TOOLS = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + TURNS.replace("THOUGHT", "")
HERMES = TOOLS.replace("CALLS", CALLS)
THINKING = TURNS.replace("CALLS", "").replace("THOUGHT", THOUGHT)


def random_logits(runner: Any, scale: float = 3.0) -> Any:
    """Logits that depend on all tokens before, on nothing else."""

    def logits_of(tokens: Sequence[int]) -> np.ndarray:
        n_vocab = runner.tokenizer.n_vocab
        return np.random.default_rng([len(tokens), *tokens]).normal(0, scale, n_vocab).astype(np.float32)

    return logits_of


@pytest.fixture
def random_runner(script_runner: Any) -> Any:
    """random_runner(…): a runner whose logits are random, for whatever text there was."""

    def make(pieces: Sequence[str] = ("name", '{"', '":', '","', '"name', "true", '"}'), **settings: Any) -> Any:
        runner = script_runner(pieces, **settings)
        runner.engine.logits_of = random_logits(runner)
        return runner

    return make


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"min_p": 0.2, "top_k": 0}, {"mirostat": 2}, {"typical_p": 0.5}])
def test_whatever_is_sampled_fits(random_runner: Any, options: dict[str, Any], seed: int) -> None:
    penalties = {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}
    options = {"temperature": 1.5, "seed": seed, **penalties, **options}
    result = random_runner().generate(format=NAME_AGE, options=options)
    print(result.messages)
    value = json.loads(result.text)
    assert value["name"] in ("Al", "Bo") and value["age"] in (1, 2, 30)
    assert list(value) == ["name", "age"]
    assert result.done.done_reason == "stop"


def test_greedy_takes_the_best_token_that_fits(script_runner: Any) -> None:
    runner = script_runner(["Al", "Bo", "no"])
    scores = {"no": 9.0, "Bo": 5.0, "A": 4.0, "B": 3.0}
    logits = np.zeros(runner.tokenizer.n_vocab, np.float32)
    for piece, score in scores.items():
        logits[_id(runner, piece)] = score
    runner.engine.logits_of = lambda tokens: logits
    assert runner.generate(format={"choice": ["Al", "Bo"]}).text == "Bo"


def test_the_end_comes_with_the_value_and_no_sooner(script_runner: Any) -> None:
    runner = script_runner(["1", "2", "3"])
    result = runner.generate(format={"regex": "[0-9]{2}"})
    assert (result.text, result.done.done_reason, result.done.stats.eval_count) == ("12", "stop", 2)
    assert runner.engine.n_evaluated == 2  # the prompt, and the first digit: nothing can follow the second one
    runner = script_runner(["1"])
    result = runner.generate(format={"regex": "[0-9]{1,5}"})
    assert (result.text, result.done.done_reason, result.done.stats.eval_count) == ("1", "stop", 2)  # and the end token
    cut = script_runner(["1"], loop=True).generate(format={"regex": "[0-9]{2,5}"}, options={"num_predict": 1})
    assert (cut.text, cut.done.done_reason) == ("1", "length")


def test_tokens_of_the_vocabulary_in_grammars(script_runner: Any) -> None:
    runner = script_runner(["1"])
    assert runner.generate(grammar='root ::= "1" <|user|> "2"').text == "12"
    assert runner.generate(format={"lark": 'start: "1" <|user|> "2"'}).text == "12"
    assert "<|nobody|>" in runner.generate(grammar="root ::= <|nobody|>").error.error


def test_a_lazy_grammar_begins_at_its_trigger(script_runner: Any) -> None:
    grammar = 'root ::= "<f>" ("one" | "two") "</f>"'
    runner = script_runner(["Well ", "<", "f>", "no", "t one", "rest"])
    lazy = {"grammar": grammar, "grammar_lazy": True, "grammar_triggers": [{"type": 1, "value": "<f>"}]}
    result = runner.generate(**lazy)
    assert (result.text, result.done.done_reason) in [("Well <f>one</f>", "stop"), ("Well <f>two</f>", "stop")]
    assert script_runner(["Well."]).generate(**lazy).text == "Well."
    pattern = {**lazy, "grammar_triggers": [{"type": "pattern", "value": "Well (<f)"}]}
    assert runner.generate(**pattern).text.startswith("Well <f>")
    # A token that ends the trigger and goes on as the grammar does not is not sampled.
    for pieces in (["Well ", "<", "f>no", "x"], ["Well ", "<f>no", "x"], ["<f>o", "nope"]):
        result = script_runner([*pieces, "rest"]).generate(**lazy, options={"num_predict": 40})
        assert "<f>" not in result.text or "<f>one</f>" in result.text or "<f>two</f>" in result.text
        assert result.done.done_reason in ("stop", "length")
    assert "does not take" in runner.generate(**{**lazy, "grammar": 'root ::= "f"'}).error.error
    for triggers, text in (
        ([], "no trigger"),
        ([{"type": "sound"}], "'sound'"),
        ([{"type": 2, "value": "("}], "character 0"),
    ):
        assert text in runner.generate(**{**lazy, "grammar_triggers": triggers}).error.error
    assert "expected a grammar" in runner.generate(format="json", grammar_lazy=True).error.error


def test_stop_strings_end_what_is_constrained(random_runner: Any) -> None:
    result = random_runner().generate(format=NAME_AGE, options={"stop": ['me":"']})
    assert (result.text, result.done.done_reason, result.done.stop) == ('{"na', "stop", 'me":"')


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("n_ctx", "more"),
    [
        (4096, {}),
        (4096, {"mirostat": 2}),
        (4096, {"xtc_probability": 0.5}),
        (4096, {"num_predict": 7}),
        (4096, {"num_predict": 22}),
        (4096, {"stop": ["sp"]}),
        (4096, {"stop": ['\u00e9":']}),
        (16, {}),
    ],
)
def test_jumps_give_the_tokens_of_single_steps(random_runner: Any, seed: int, n_ctx: int, more: dict[str, Any]) -> None:
    runner = random_runner(["\u00e9t\u00e9", "am", '":'], n_ctx=n_ctx)
    properties = {"\u00e9t\u00e9": {"enum": ["spam", "span"]}, "x": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    found, steps = [], []
    for settings in ({}, {"jumps": False}, {"logprobs": True}):
        before = len(runner.engine.steps)
        options = {"temperature": 1.0, "seed": seed, **more}
        result, tokens = generated(runner, options, format=schema, **settings)
        assert result.done.stats.eval_count == len(tokens)
        found.append((tokens, result.text, result.done.done_reason))
        steps.append(len(runner.engine.steps) - before)
    assert found[0] == found[1] == found[2]
    if n_ctx > 16:  # where a context is full, all that is kept is evaluated again
        assert steps[0] < steps[1] == steps[2]
    if not more:
        assert json.loads(found[0][1])["\u00e9t\u00e9"] in ("spam", "span")


def generated(runner: Any, options: dict[str, Any], jumps: bool = True, **fields: Any) -> tuple[Any, list[int]]:
    """The messages and the tokens of an answer."""
    runner.n_requests += 1
    options = model_options.resolve({}, options)
    request = GenerateRequest(str(runner.n_requests), "generate", "<|assistant|>", raw=True, options=options, **fields)
    generation = runner.preparation.handle(request)
    assert isinstance(generation, Generation)
    generation._jumps = generation._jumps and jumps
    runner.batch.submit(generation)
    runner.run()
    return runner.result(request.id), generation._generated


def test_text_that_is_forced_has_the_tokens_that_the_tokenizer_makes_of_it(random_runner: Any) -> None:
    runner = random_runner(["name", '{"', '":', '","', "true", '"}'])
    _, tokens = generated(runner, {"temperature": 0}, format={"const": {"name": [True, "name"]}})
    pieces = [runner.tokenizer.piece(token) for token in tokens]
    assert b"".join(pieces) == b'{"name":[true,"name"]}'
    assert tokens == runner.tokenizer.encode(b"".join(pieces).decode(), add_special=False)
    assert len(runner.engine.steps) == 1  # of the prompt


def test_the_end_of_what_is_forced_is_left_to_the_model(random_runner: Any) -> None:
    runner = random_runner(["a:", ":true", "xy"])
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for seed in range(8):
        result, tokens = generated(runner, {"temperature": 2.0, "seed": seed}, format=schema)
        pieces = [runner.tokenizer.piece(token) for token in tokens]
        # `":` is forced, but the colon may be the beginning of another token.
        assert b'":' not in pieces and json.loads(result.text) in ({"a": True}, {"a": False})


def test_constrained_answers_beside_others_and_paused(random_runner: Any) -> None:
    alone = random_runner(n_parallel=3)
    options = {"temperature": 1.0, "seed": 5, "num_predict": 60}
    wishes: list[dict[str, Any]] = [{"format": NAME_AGE}, {}, {"format": {"regex": "[a-f]{20}"}}]
    texts = [alone.generate(options=options, **wish).text for wish in wishes]
    together = random_runner(n_parallel=3)
    ids = [together.submit(options=options, **wish) for wish in wishes]
    together.run()
    assert [together.result(i).text for i in ids] == texts
    paused = random_runner(n_parallel=1)
    background = paused.submit(options=options, is_interactive=False, **wishes[2])
    for _ in range(4):
        paused.batch.step()
    assert paused.generate(options=options, **wishes[0]).text == texts[0]
    paused.run()
    assert paused.result(background).text == texts[2]


def test_a_constraint_that_fails_ends_its_own_answer(random_runner: Any) -> None:
    runner = random_runner(n_parallel=2)
    forbidden = {str(_id(runner, digit)): False for digit in "0123456789"}
    bad = runner.submit(format={"regex": "a[0-9]b"}, options={"logit_bias": forbidden})
    good = runner.submit(format={"choice": ["yes"]})
    runner.run()
    assert "leave no token" in runner.result(bad).error.error and runner.result(bad).error.kind == "RequestError"
    assert runner.result(good).text == "yes"


def _id(runner: Any, piece: str) -> int:
    (token,) = [t for t in range(runner.tokenizer.n_vocab) if runner.tokenizer.piece(t, special=True) == piece.encode()]
    return int(token)


def test_thinking_is_free_and_content_is_not(script_runner: Any) -> None:
    pieces = ["<think>", "hm, {", " so", "</think>", "\n\n", "no", "yes"]
    runner = script_runner(pieces, template=THINKING)
    result = runner.chat([USER], format={"choice": ["yes", "nono"]})
    assert (result.thinking, result.text) == ("hm, { so", "nono")
    # Told not to think, it begins with content at once.
    result = runner.chat([USER], format={"choice": ["yes", "nono"]}, think=False)
    assert (result.thinking, result.text) in (("", "yes"), ("", "nono"))


def test_calls_that_are_required(random_runner: Any) -> None:
    runner = random_runner(template=HERMES)
    for seed in range(3):
        options = {"temperature": 1.5, "seed": seed}
        fields = {"tools": [WEATHER, SEEK], "parallel_tool_calls": False, "options": options}
        result = runner.chat([USER], tool_choice={"name": "get_weather"}, **fields)
        (call,) = result.functions
        assert call["name"] == "get_weather" and call["arguments"]["unit"] in ("c", "f")
        assert (result.text, result.done.done_reason) == ("", "stop")


def test_a_function_that_is_named_is_called_once(random_runner: Any) -> None:
    runner = random_runner(template=HERMES)
    for seed in range(4):
        options = {"temperature": 1.5, "seed": seed}
        result = runner.chat([USER], tool_choice={"name": "get_weather"}, tools=[WEATHER, SEEK], options=options)
        assert [call["name"] for call in result.functions] == ["get_weather"]
        assert result.done.done_reason == "stop"


def test_calls_of_strict_tools_in_free_text(script_runner: Any) -> None:
    pieces = [
        "Well. ",
        "<tool_call>",
        '{"name": "',
        "get_weather",
        '", "arg',
        "ume",
        'nts": {',
        '"bad": 1}}',
        "</tool_call>",
    ]
    runner = script_runner(pieces, template=HERMES)
    result = runner.chat([USER], tools=[STRICT, SEEK])
    (call,) = result.functions
    assert (call["name"], result.text) == ("get_weather", "Well.")
    assert call["arguments"]["unit"] in ("c", "f")
    text = script_runner(["Well. ", "no."], template=HERMES).chat([USER], tools=[STRICT])
    assert (text.text, text.done.done_reason) == ("Well. no.", "stop")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"format": 3}, 'expected "json", a JSON schema or {"regex": …}'),
        ({"format": "xml"}, 'not "xml"'),
        ({"format": {"regex": 3}}, "format.regex: expected a pattern, not 3"),
        ({"format": {"regex": "a", "flags": "i"}}, '"regex" stands alone, not beside "flags"'),
        ({"format": {"choice": []}}, "format.choice: expected an array of texts"),
        ({"format": {"choice": ["a", ""]}}, "format.choice: expected an array of texts"),
        ({"format": {"lark": ["a"]}}, 'format.lark: expected a grammar, not ["a"]'),
        ({"format": {"lark": "start: b"}}, '"b" is not defined'),
        ({"format": {"type": "object", "x-whitespace": "lots"}}, '#/x-whitespace: expected "compact" or "flexible"'),
        ({"format": {"type": "flobject"}}, "JSON schema: #/type: "),
        ({"format": {"x-lenient": "yes"}}, 'JSON schema: #/x-lenient: expected true or false, not "yes"'),
        ({"format": False}, 'expected "json", a JSON schema or {"regex": …}'),
        ({"grammar": "root ::= missing"}, "missing"),
        ({"format": "json", "grammar": 'root ::= "a"'}, "format and grammar exclude each other"),
    ],
)
def test_what_cannot_be_compiled_is_refused(script_runner: Any, fields: dict[str, Any], text: str) -> None:
    runner = script_runner()
    error = runner.generate("p", **fields).error
    assert (error.kind, text in error.error) == ("RequestError", True), error.error
    assert runner.generate().text == "abcdef"


def test_thousands_of_choices_that_begin_alike(random_runner: Any) -> None:
    texts = [f"number {i * i}" for i in range(20000)]
    runner = random_runner()
    for seed in range(3):
        assert runner.generate(format={"choice": texts}, options={"temperature": 1.0, "seed": seed}).text in set(texts)


def test_a_wish_is_compiled_once(script_runner: Any) -> None:
    constraints = script_runner().preparation._constraints
    request = GenerateRequest("1", "generate", format=NAME_AGE)
    first, again = constraints.of(request, Frame()), constraints.of(replace(request, id="2"), Frame())
    assert first.constraint is again.constraint
    other = constraints.of(replace(request, format={"type": "integer"}), Frame())
    assert other.constraint is not first.constraint
    assert constraints.of(replace(request, format=None), Frame()) is None


def test_a_vocabulary_must_have_every_character() -> None:
    class Letters:
        suppress_ids = frozenset((26,))

        def piece(self, token: int) -> bytes:
            return b"abcdefghijklmnopqrstuvwxyz{"[token : token + 1]

    with pytest.raises(RequestError, match="has no token for the character"):
        pieces_of("m", Letters(), 27)  # type: ignore[arg-type]


def test_content_that_has_been_begun_goes_on_if_it_fits(script_runner: Any) -> None:
    runner = script_runner(["no", "yes"], template=THINKING)
    begun = [USER, {"role": "assistant", "content": "ye"}]
    assert runner.chat(begun, format={"choice": ["yes"]}).text == "s"
    begun = [USER, {"role": "assistant", "content": "Here it is: "}]
    assert runner.chat(begun, format={"choice": ["yes"]}).text == "yes"

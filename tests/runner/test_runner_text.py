"""What text comes out: characters whole, stop strings, limits, log-probabilities, thinking."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

WIDE = [b"\xf0", b"\x9f", b"\xa6", b"\x99", "щ", b"\xe4", b"\xbd", b"\xa0", "!"]
PIECES = ["MNO", "PQR", "S", "TU", "V", "Wiiik", " tail"]
STOPS = [
    (["PQRSTUV"], "MNO"),
    (["PQRSX"], "MNOPQRSTUVWiiik tail"),
    (["QRS"], "MNOP"),
    (["TUVW"], "MNOPQRS"),
    (["iik"], "MNOPQRSTUVWi"),
    (["V", "PQRS"], "MNO"),
    ([""], "MNOPQRSTUVWiiik tail"),
    (["tail"], "MNOPQRSTUVWiiik "),
    (["TU", "TUV"], "MNOPQRS"),
]


def test_pieces_then_the_end(script_runner: Any) -> None:
    result = script_runner().generate()
    assert (result.pieces, result.done.done_reason) == (["ab", "cd", "ef"], "stop")
    assert (result.done.stats.prompt_eval_count, result.done.stats.eval_count) == (1, 4)  # the end token counts
    assert result.done.stats.prompt_eval_duration_ns > 0
    assert result.done.stats.eval_duration_ns > 0
    assert result.done.truncated is None
    assert result.done.context is None  # raw


def test_characters_over_several_tokens_come_whole(script_runner: Any) -> None:
    result = script_runner(WIDE).generate()
    assert result.text == "🦙щ你!"
    assert not any("\ufffd" in piece for piece in result.pieces)


@pytest.mark.parametrize(("num_predict", "text"), [(2, ""), (4, "🦙")])
def test_an_unfinished_character_is_not_shown(script_runner: Any, num_predict: int, text: str) -> None:
    result = script_runner(WIDE).generate(options={"num_predict": num_predict})
    assert (result.text, result.done.done_reason, result.done.stats.eval_count) == (text, "length", num_predict)


@pytest.mark.parametrize(("stops", "expected"), STOPS)
def test_stop_strings(script_runner: Any, stops: list[str], expected: str) -> None:
    result = script_runner(PIECES).generate(options={"stop": stops})
    assert (result.text, result.done.done_reason) == (expected, "stop")
    shown = ""
    for piece in result.pieces:
        shown += piece
        assert expected.startswith(shown)


@pytest.mark.parametrize(("stops", "expected"), STOPS)
def test_logprobs_follow_the_text(script_runner: Any, stops: list[str], expected: str) -> None:
    result = script_runner(PIECES).generate(options={"stop": stops}, logprobs=True)
    assert "".join(entry["token"] for entry in result.logprobs) == expected
    text = told = ""
    for chunk in result.chunks:
        text += chunk.text
        told += "".join(entry["token"] for entry in chunk.logprobs)
        assert text.startswith(told)


def test_logprobs_of_characters_over_several_tokens(script_runner: Any) -> None:
    result = script_runner(WIDE).generate(logprobs=True)
    assert "".join(entry["token"] for entry in result.logprobs) == "🦙щ你!"
    assert bytes(b for entry in result.logprobs for b in entry["bytes"]).decode() == "🦙щ你!"
    assert len(result.logprobs) == 9
    cut = script_runner(WIDE).generate(logprobs=True, options={"num_predict": 2})
    assert [entry["bytes"] for entry in cut.logprobs] == [[0xF0], [0x9F]]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 1}])
def test_logprobs_are_those_of_the_model(script_runner: Any, options: dict[str, float]) -> None:
    runner = script_runner()
    logits = np.full(runner.tokenizer.n_vocab, -30, np.float32)
    logits[[runner.tokenizer.encode(letter)[0] for letter in "ABC"]] = np.log([0.5, 0.3, 0.2])
    runner.engine.logits_of = lambda tokens: logits
    result = runner.generate(options={"num_predict": 3, **options}, logprobs=True, top_logprobs=2)
    assert result.text == "AAA"
    assert len(result.logprobs) == 3
    for entry in result.logprobs:
        assert entry["token"] == "A"
        assert entry["bytes"] == [65]
        assert entry["logprob"] == pytest.approx(math.log(0.5), abs=0.01)
        assert [top["token"] for top in entry["top_logprobs"]] == ["A", "B"]
        assert entry["top_logprobs"][1]["logprob"] == pytest.approx(math.log(0.3), abs=0.01)
    plain = runner.generate(options={"num_predict": 1}, logprobs=True)
    assert plain.logprobs[0]["top_logprobs"] == []
    assert runner.generate(options={"num_predict": 1}).logprobs == []


@pytest.mark.parametrize("num_predict", [None, -1, -2, 0, 5, 10_000])
@pytest.mark.parametrize("prompt", ["<|assistant|>", "x" * 500 + "<|assistant|>"])
@pytest.mark.parametrize("num_keep", [4, 100, -1, 0])
def test_endless_text_ends(script_runner: Any, num_predict: int | None, prompt: str, num_keep: int) -> None:
    runner = script_runner(loop=True, n_ctx=64, n_batch=32)
    result = runner.generate(prompt, truncate=True, options={"num_predict": num_predict, "num_keep": num_keep})
    done = result.done
    expected = {5: 5, 0: 0}.get(num_predict if num_predict is not None else -1, 640)
    assert (done.done_reason, done.stats.eval_count) == ("length", expected)
    assert result.text == ("abcdef" * 1000)[: 2 * expected]
    assert done.stats.prompt_eval_duration_ns > 0
    if len(prompt) > 500:
        assert done.truncated is not None and done.truncated["tokens"] > 400
        assert done.stats.prompt_eval_count + done.truncated["tokens"] == 501
    if expected == 640:
        assert done.truncated is not None and done.truncated["shifted"] > 0
    assert runner.generate(options={"num_predict": 3}).text == "abcdef"


def test_without_shift_a_full_context_ends_the_text(script_runner: Any) -> None:
    result = script_runner(loop=True, n_ctx=64).generate(shift=False)
    assert (result.done.done_reason, result.done.stats.eval_count, result.done.truncated) == ("length", 64, None)


def test_a_request_for_less_context_than_was_loaded(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_ctx=4096)
    done = runner.generate("x" * 500 + "<|assistant|>", truncate=True, options={"num_ctx": 64}).done
    assert done.stats.eval_count == 640 and done.truncated["tokens"] > 400
    assert runner.generate(options={"num_ctx": 8192, "num_predict": 3}).text == "abcdef"


def test_a_shift_keeps_the_beginning_and_the_newest(script_runner: Any) -> None:
    runner = script_runner(loop=True, n_ctx=16)
    runner.generate("12345<|assistant|>", options={"num_keep": 3, "num_predict": 12})
    prompt = runner.tokenizer.encode("12345<|assistant|>")
    (seq,) = runner.engine.closed_sequences
    assert list(seq.tokens[:3]) == prompt[:3]
    text = runner.tokenizer.decode(seq.tokens)
    assert text.startswith(("123ab", "123cd", "123ef"))
    assert text[3:] in "abcdef" * 4 and text.endswith("cd")  # "ef" was sampled last, and not evaluated


@pytest.mark.parametrize(
    ("pieces", "thinking", "text"),
    [
        (["<think>", "hm", " so", "\n</th", "ink>", "\n\n", "yes"], "hm so", "yes"),
        (["ye", "s"], "", "yes"),
        (["<think>", "no end"], "no end", ""),
    ],
)
def test_thinking_is_told_from_text(script_runner: Any, pieces: list[str], thinking: str, text: str) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<|assistant|>{# <think></think> #}"
    result = script_runner(pieces, template=template).chat([{"role": "user", "content": "u"}])
    assert (result.thinking, result.text) == (thinking, text)
    raw = script_runner(pieces, template=template).generate()
    assert (raw.thinking, raw.text) == ("", "".join(pieces))


def test_thinking_that_the_prompt_has_opened(script_runner: Any) -> None:
    template = "{% if enable_thinking %}<think>{% endif %}{{ messages[0].content }}<|assistant|><think>"
    runner = script_runner(["hm</think>", "yes"], template=template)
    runner.engine.logits_of = _after(runner.tokenizer, ">", runner.engine.logits_of)
    result = runner.chat([{"role": "user", "content": "u"}])
    assert (result.thinking, result.text) == ("hm", "yes")


def _after(tokenizer: Any, last: str, logits_of: Any) -> Any:
    """As if the token of `last` were <|assistant|>."""
    (stand_in,), (assistant,) = tokenizer.encode(last), tokenizer.encode("<|assistant|>")
    return lambda tokens: logits_of([assistant if tokens[-1] == stand_in else tokens[-1]])


def test_bias_by_id_and_by_text_and_no_end(script_runner: Any) -> None:
    runner = script_runner(["a", "b"])
    (a,) = runner.tokenizer.encode("a")
    assert runner.generate(options={"logit_bias": {str(a): -100}, "num_predict": 1}).text != "a"
    assert runner.generate(options={"logit_bias": {"b": 100}, "num_predict": 2}).text == "bb"
    result = runner.generate(options={"ignore_eos": True, "num_predict": 10})
    assert (result.done.done_reason, result.done.stats.eval_count) == ("length", 10)


def test_dry_with_breakers_from_the_vocabulary(script_runner: Any) -> None:
    runner = script_runner(loop=True)
    options = {"dry_multiplier": 50.0, "dry_allowed_length": 2, "num_predict": 12}
    assert runner.generate(options=options).text != "abcdef" * 4
    assert runner.generate(options={**options, "dry_sequence_breakers": ["b", "d", "f"]}).text == "abcdef" * 4


def test_seeds(script_runner: Any) -> None:
    def logits_of(tokens: Any) -> np.ndarray:
        return np.random.default_rng(list(tokens)).normal(0, 3, runner.tokenizer.n_vocab).astype(np.float32)

    runner = script_runner(n_parallel=2, logits_of=logits_of)
    options = {"seed": 42, "temperature": 0.9, "num_predict": 40}
    first = runner.generate("seed test", options=options).done
    prompt = runner.tokenizer.encode("seed test")

    def tokens(done: Any) -> list[int]:
        return [*done.context] if done.context else []

    def run(seed: int, **extra: Any) -> list[int]:
        result = runner.generate("seed test", raw=False, options={**options, "seed": seed, **extra})
        return tokens(result.done)

    reference = run(42)
    assert first.stats.eval_count > 0 and len(reference) > len(prompt)
    assert run(42) == reference
    runner.generate("something else", options=options)
    assert run(42) == reference
    other = runner.submit("a second request", options={**options, "seed": 7})
    assert run(42) == reference
    assert runner.result(other).done
    assert run(43) != reference
    assert run(1, temperature=0) == run(2, temperature=0)


def test_the_fallback_template_ends_at_its_end_mark(script_runner: Any) -> None:
    runner = script_runner(["he said", "<|im_", "end|>", "more"], metadata={"tokenizer.chat_template": None})
    runner.engine.logits_of = _after(runner.tokenizer, "\n", runner.engine.logits_of)
    result = runner.chat([{"role": "user", "content": "u"}])
    assert (result.text, result.done.done_reason) == ("he said", "stop")

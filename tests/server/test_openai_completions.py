"""/v1/completions: prompts in every form, several choices, echo, log-probabilities, streams, refusals."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]

PATH = "/v1/completions"


def tokens(text: str) -> list[int]:
    """The token ids of a text for the fake runner, whose tokens are bytes."""
    return list(text.encode())


async def complete(r: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = await r.post(PATH, {"model": "m", **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def asked_of_runner(r: Any, prompt: Any = "!request", **body: Any) -> dict[str, Any]:
    return dict(json.loads((await complete(r, {"prompt": prompt, **body}))["choices"][0]["text"]))


async def stream(r: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await r.post(PATH, {"model": "m", "stream": True, **body})
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    *data, done, rest = response.text.split("\n\n")
    assert done == "data: [DONE]" and rest == ""
    return [json.loads(item.removeprefix("data: ")) for item in data]


async def test_a_whole_answer(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        answer = await complete(r, {"prompt": "one two !length"})
    assert answer.pop("id").startswith("cmpl-") and isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "text_completion",
        "model": "m",
        "system_fingerprint": "fp_localllm",
        "choices": [{"text": "one two ", "index": 0, "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_text_goes_through_the_template_and_tokens_do_not(running: Running, add_model: Add) -> None:
    add_model(system="be brief")
    async with running() as r:
        asked = await asked_of_runner(r)
        assert (asked["kind"], asked["raw"], asked["system"], asked["tokens"]) == ("generate", False, "be brief", None)
        for prompt in (tokens("!request"), [tokens("!request")]):
            asked = await asked_of_runner(r, prompt)
            assert asked["tokens"] == tokens("!request") and asked["raw"] is True and asked["system"] is None


async def test_fields(running: Running, add_model: Add) -> None:
    add_model(params={"temperature": 0.5})
    async with running() as r:
        asked = await asked_of_runner(r, max_tokens=3, stop="x", seed=5, logit_bias={"1": 2}, num_ctx=64)
        options = asked["options"]
        assert (options["num_predict"], options["stop"], options["seed"], options["num_ctx"]) == (3, ["x"], 5, 64)
        assert (options["temperature"], options["top_p"], options["logit_bias"]) == (1.0, 1.0, {"1": 2.0})
        assert asked["logprobs"] is False and asked["format"] is None and asked["grammar"] is None
        asked = await asked_of_runner(r, response_format={"type": "json_object"}, grammar="root ::= [a]")
        assert asked["format"] == "json" and asked["grammar"] == "root ::= [a]"
        assert (await asked_of_runner(r, chat_template_kwargs={"x": 1}))["template_arguments"] == {"x": 1}


async def test_several_prompts_and_choices(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        answer = await complete(r, {"prompt": ["a", "b c"], "n": 2, "best_of": 2})
        mixed = await complete(r, {"prompt": [tokens("x y"), "z"], "echo": True})
        seeds = await complete(r, {"prompt": "!options", "n": 2, "seed": 3})
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "a "), (1, "a "), (2, "b c "), (3, "b c ")]
    assert answer["usage"]["prompt_tokens"] == 3 and answer["usage"]["completion_tokens"] == 6
    assert [choice["text"] for choice in mixed["choices"]] == ["x yx y ", "zz "]
    assert [json.loads(choice["text"])["seed"] for choice in seeds["choices"]] == [3, 4]


async def test_logprobs(running: Running, add_model: Add) -> None:
    add_model()
    body = {"prompt": "b !logprobs !logprobs", "logprobs": 1}
    async with running() as r:
        whole = (await complete(r, body))["choices"][0]
        chunks = await stream(r, body)
        asked = await asked_of_runner(r, logprobs=0)
        without_top = (await complete(r, {**body, "logprobs": 0}))["choices"][0]["logprobs"]
    assert whole["text"] == "b aa"
    assert whole["logprobs"] == {
        "tokens": ["a", "a"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"b": None, "a": -0.5}] * 2,
        "text_offset": [2, 3],
    }
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [part["text_offset"] for part in streamed] == [[2], [3]]
    assert asked["logprobs"] is True and asked["top_logprobs"] == 0 and without_top["tokens"] == ["a", "a"]


async def test_a_stream(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        chunks = await stream(r, {"prompt": "a b", "echo": True, "stream_options": {"include_usage": True}})
        thought = await stream(r, {"prompt": "!think:hm a"})
        broken = await stream(r, {"prompt": "a !error:RunnerError"})
    *said, last = chunks
    assert [chunk["choices"][0]["text"] for chunk in said] == ["a b", "a ", "b ", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in said] == [None, None, None, "stop"]
    assert all("usage" not in chunk for chunk in said) and last["choices"] == [] and last["usage"]["total_tokens"] == 4
    assert thought[0]["choices"][0] | {"text": "", "reasoning": "hm"} == thought[0]["choices"][0]
    assert broken[-1]["error"]["message"] == "scripted error" and broken[-1]["error"]["type"] == "api_error"


async def test_thinking_of_a_whole_answer(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        (choice,) = (await complete(r, {"prompt": "!think:hm a"}))["choices"]
    assert choice["text"] == "a " and choice["reasoning"] == "hm"


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({}, "prompt", "expected a string, token ids, or an array of either, not null"),
        ({"prompt": ""}, "prompt", "must not be empty"),
        ({"prompt": []}, "prompt", "not an array"),
        ({"prompt": ["a", ""]}, "prompt[1]", "must not be empty"),
        ({"prompt": {"a": 1}}, "prompt", "not an object"),
        ({"prompt": ["a", [1.5]]}, "prompt[1]", "expected a string or token ids, not an array"),
        ({"prompt": [True]}, "prompt[0]", "expected a string or token ids, not a boolean"),
        ({"prompt": "a", "best_of": 2}, "best_of", "must equal n (1), not 2"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "must be in 0..20, not 21"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "of type int"),
        ({"prompt": "a", "logprobs": 1, "echo": True}, "logprobs", "cannot be given beside echo"),
        ({"prompt": [1, 2], "suffix": "x"}, "suffix", "needs prompts of text"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt", "prompts x n must be at most 128, not 130"),
        ({"prompt": "a", "n": -1}, "n", "must be in 1..128, not -1"),
        ({"prompt": "a", "suffix": "b"}, None, "registry.ollama.ai/library/m:latest does not support insert"),
        ({"prompt": "!error:ContextLengthError"}, None, "scripted error"),
    ],
)
async def test_what_is_refused(
    running: Running, add_model: Add, body: dict[str, Any], param: str | None, text: str
) -> None:
    add_model()
    async with running() as r:
        response = await r.post(PATH, {"model": "m", **body})
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == param and text in error["message"]


async def test_an_insertion(running: Running, add_model: Add) -> None:
    add_model(params={"fake": {"capabilities": ["completion", "insert"]}})
    async with running() as r:
        asked = await asked_of_runner(r, suffix="after")
    assert asked["suffix"] == "after" and asked["prompt"] == "!request" and asked["system"] is None

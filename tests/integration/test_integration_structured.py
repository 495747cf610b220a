"""Constrained answers through the real daemon, with the clients that people use, and what may go wrong with them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import ollama
import openai
import pytest

pytestmark = pytest.mark.integration

GENERATE, CHAT, OPENAI = "/api/generate", "/api/chat", "/v1/chat/completions"
HOT = {"temperature": 1.5, "num_predict": 400}
USER = [{"role": "user", "content": "Make something up."}]
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|end|>"
    "{% endfor %}<|assistant|>"
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["calm", "cross", 7, None]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "maxItems": 3},
        "when": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "mood", "tags", "when"],
    "additionalProperties": False,
}
ADD = {
    "name": "add",
    "description": "adds",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
SEEK = {"name": "seek", "parameters": {"type": "object", "properties": {"q": {"enum": ["u", "v"]}}, "required": ["q"]}}
BLANKS = {"\n": 9.0, " ": 8.9, "{": 1.0, "}": 0.9, '"': 0.5, "a": 0.4, "1": 0.3, "<|eos|>": 0.1}


@pytest.fixture(scope="module")
def add(server: Any, tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """add(name, maker, …): the name of a model in the store that `maker` of tiny_models has written, once."""
    folder: Path = tmp_path_factory.mktemp("structured")

    def make(name: str, maker: str, *args: Any, **more: Any) -> str:
        if f"{name}:latest" not in server.names():
            getattr(tiny_models, maker)(folder / f"{name}.gguf", *args, **more)
            server.add(folder / f"{name}.gguf")
        return name

    return make


@pytest.fixture(scope="module")
def chatter(add: Callable[..., str]) -> str:
    """A model of random weights whose template knows tools."""
    return add("chatter", "random_model", seed=3, tmpl=TEMPLATE)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_sampled_is_valid(server: Any, model: Any, seed: int) -> None:
    answer = server.post(
        GENERATE, {"model": model("random"), "prompt": "x", "format": PERSON, "options": {**HOT, "seed": seed}}
    )
    assert answer["done_reason"] == "stop"
    jsonschema.validate(json.loads(answer["response"]), PERSON, format_checker=jsonschema.FormatChecker())


def test_many_at_once_are_each_their_own(server: Any, model: Any) -> None:
    name = model("random")
    wishes = [
        {"format": PERSON},
        {"format": {"choice": ["red", "green", "blue"]}},
        {"format": {"regex": "[0-9]{3}-[0-9]{4}"}},
        {"grammar": 'root ::= ("ab" | "cd"){3} "!"'},
        {"format": {"enum": ["a", 1, None]}},
        {},
    ]

    def ask(wish: dict[str, Any], seed: int) -> str:
        options = {**HOT, "num_predict": 100, "seed": seed}
        text: str = server.post(GENERATE, {"model": name, "prompt": "x", "options": options, **wish})["response"]
        return text

    asked = [(wish, seed) for seed in range(3) for wish in wishes]
    alone = [ask(*one) for one in asked]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda one: ask(*one), asked)) == alone
    assert set(alone[1::6]) <= {"red", "green", "blue"}
    assert all(len(text) == 7 and text.endswith("!") for text in alone[3::6])


def test_the_ollama_client(server: Any, model: Any) -> None:
    with ollama.Client(server.url, trust_env=False) as client:
        answer = client.generate(model("random"), "x", format=PERSON, options={**HOT, "seed": 5})
        jsonschema.validate(json.loads(answer.response), PERSON)
        parts = list(
            client.chat(
                model("random"), USER, format="json", stream=True, options={"temperature": 0, "num_predict": 60}
            )
        )
        assert "".join(part.message.content or "" for part in parts).startswith("{")
        with pytest.raises(ollama.ResponseError, match=r"#/properties/a/type: .*flobject"):
            client.chat(model("random"), USER, format={"properties": {"a": {"type": "flobject"}}})


@pytest.mark.parametrize("strict", [True, False, None])
def test_the_openai_client(server: Any, chatter: str, strict: bool | None) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": strict}}
    flat: Any = {"format": {"type": "json_schema", "name": "p", "schema": PERSON, "strict": strict}}
    messages: Any = USER
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=chatter, messages=messages, response_format=schema, temperature=1.5, seed=1, n=3, logprobs=True
        )
        for choice in answer.choices:
            jsonschema.validate(json.loads(choice.message.content or ""), PERSON)
            assert choice.finish_reason == "stop" and choice.logprobs is not None
            tokens = choice.logprobs.content or []
            assert "".join(token.token for token in tokens) == choice.message.content
        response = client.responses.create(model=chatter, input="x", text=flat, temperature=1.5)
        jsonschema.validate(json.loads(response.output_text), PERSON)


def test_calls_that_are_required(server: Any, chatter: str) -> None:
    tools = [{"type": "function", "function": ADD}, {"type": "function", "function": SEEK}]
    body = {"model": chatter, "messages": USER, "tools": tools, "temperature": 1.5, "parallel_tool_calls": False}
    names = set()
    for seed in range(6):
        (choice,) = server.post(OPENAI, {**body, "seed": seed, "tool_choice": "required"})["choices"]
        (call,) = choice["message"]["tool_calls"]
        names.add(call["function"]["name"])
        schema = ADD["parameters"] if call["function"]["name"] == "add" else SEEK["parameters"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), schema)  # type: ignore[arg-type]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "")
    assert names <= {"add", "seek"}
    for seed in range(3):
        chosen = {"type": "function", "function": {"name": "seek"}}
        (choice,) = server.post(OPENAI, {**body, "seed": seed, "tool_choice": chosen})["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "seek" and json.loads(call["function"]["arguments"])["q"] in ("u", "v")


def test_strict_tools_leave_text_free_and_calls_valid(server: Any, add: Callable[..., str]) -> None:
    pieces = [
        "Well. ",
        "<tool_call>",
        '\n{"name": "',
        "add",
        '", "arg',
        "ume",
        'nts": {',
        '"bad": 1}}',
        "\n</tool_call>",
    ]
    name = add("caller", "script_model", pieces, tmpl=TEMPLATE)
    tools = [{"type": "function", "function": {**ADD, "strict": True}}]
    (choice,) = server.post(OPENAI, {"model": name, "messages": USER, "tools": tools, "temperature": 0})["choices"]
    (call,) = choice["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), ADD["parameters"])  # type: ignore[arg-type]
    assert choice["message"]["content"] == "Well."


def test_warnings_of_what_is_not_enforced(server: Any, chatter: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 3, "pattern": r"^(.)\1"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    refused = server.refused(GENERATE, {"model": chatter, "prompt": "x", "format": schema}, 400)
    assert "#/properties/a" in refused
    lenient = {**schema, "x-lenient": True}
    answer = server.post(GENERATE, {"model": chatter, "prompt": "x", "format": lenient, "options": HOT})
    assert "#/properties/a" in answer["warnings"][0] and set(json.loads(answer["response"])) == {"a"}
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": lenient}}
    whole = server.post(OPENAI, {"model": chatter, "messages": USER, "response_format": response_format})
    assert whole["warnings"] == answer["warnings"]
    output = {"format": {"type": "json_schema", "schema": lenient}}
    message = server.post(
        "/v1/messages",
        {"model": chatter, "max_tokens": 400, "messages": USER, "output_config": output, "temperature": 1},
    )
    assert message["warnings"] == answer["warnings"] and set(json.loads(message["content"][0]["text"])) == {"a"}


def boxes(key: str, names: Any) -> dict[str, Any]:
    """gb-01's schema, its definitions in some order."""

    def box(reference: str) -> dict[str, Any]:
        properties = {"v": {"$ref": f"#/{key}/{reference}"}}
        return {"type": "object", "properties": properties, "required": ["v"], "additionalProperties": False}

    definitions = {
        "Box": box("Bag"),
        "Bag": box("Leaf"),
        "Leaf": {"type": "boolean"},
        "Mood": {"enum": ["calm", "cross", 7]},
    }
    return {
        **({key: {name: definitions[name] for name in names}} if names else {}),
        "type": "object",
        "properties": {"x": {"$ref": f"#/{key}/Box"}, "mood": {"$ref": f"#/{key}/Mood"}},
        "required": ["x", "mood"],
        "additionalProperties": False,
    }


def test_definitions_in_any_order(server: Any, model: Any) -> None:
    orders = list(itertools.permutations(("Box", "Bag", "Leaf", "Mood")))
    for i, (key, order) in enumerate([*(("$defs", order) for order in orders), ("definitions", orders[5])]):
        schema = boxes(key, order)
        body = {"model": model("random"), "prompt": "x", "format": schema, "options": {**HOT, "seed": i}}
        value = json.loads(server.post(GENERATE, body)["response"])
        jsonschema.validate(value, schema)
        assert isinstance(value["x"]["v"]["v"], bool)
    text = server.refused(GENERATE, {"model": model("random"), "prompt": "x", "format": boxes("$defs", ())}, 400)
    assert "#/$defs/" in text and "leads to nothing" in text


BAD_SCHEMAS: list[tuple[Any, tuple[str, ...]]] = [
    ({"type": "string", "pattern": "^(unclosed"}, ("unclosed", "pattern")),
    ({"type": "flobject"}, ("flobject",)),
    ({"$ref": "#/nowhere"}, ("#/nowhere",)),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ("#",)),
    ({"anyOf": []}, ("anyOf",)),
    ({"enum": []}, ("enum",)),
    (False, ("false",)),
]
BAD_GRAMMARS = [
    ('Root ::= "a"', "root"),
    ("root ::= missing", "missing"),
    ('root ::= "a', "line 1"),
    ("root ::= [z-a]", "z-a"),
    ('root ::= "a"{5,2}', "5"),
    ("   ", "no rules"),
    ("", "no rules"),
]


def test_what_cannot_be_compiled_is_refused_and_harms_nobody(server: Any, model: Any) -> None:
    name = model("random")
    server.post(GENERATE, {"model": name, "prompt": "x", "options": {"num_predict": 1}})
    pid = server.runner_of(name).pid
    for schema, hints in BAD_SCHEMAS:
        start = time.monotonic()
        text = server.refused(GENERATE, {"model": name, "prompt": "x", "format": schema}, 400)
        assert len(text) > 10 and any(hint in text for hint in hints), text
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        response = server.http.post(OPENAI, json={"model": name, "messages": USER, "response_format": wanted})
        assert response.status_code == 400 and len(response.json()["error"]["message"]) > 10
        assert time.monotonic() - start < 5
    for grammar, hint in BAD_GRAMMARS:
        text = server.refused(GENERATE, {"model": name, "prompt": "x", "grammar": grammar}, 400)
        assert len(text) > 10 and hint in text, text
    assert server.runner_of(name).is_running() and server.runner_of(name).pid == pid
    assert server.post(GENERATE, {"model": name, "prompt": "x", "options": {"num_predict": 3}})["eval_count"] == 3


def test_recursion_and_nesting(server: Any, add: Callable[..., str]) -> None:
    name = add("aab", "flat_model", {"a": 2.0, "b": 1.5, "<|eos|>": 1.0})
    server.post(GENERATE, {"model": name, "prompt": "x", "options": {"num_predict": 1}})
    memory = server.runner_of(name).memory_info().rss

    def ask(grammar: str, n: int = 8) -> Any:
        start = time.monotonic()
        body = {"model": name, "prompt": "x", "raw": True, "stream": False, "grammar": grammar}
        response = server.http.post(GENERATE, json={**body, "options": {"temperature": 0, "num_predict": n}})
        assert time.monotonic() - start < 4  # 2 s on a machine that does nothing else
        return response

    for grammar in ('root ::= root "b" | "a"', 'root ::= e\ne ::= n | e "+" e\nn ::= [0-9]+'):
        response = ask(grammar)
        assert response.status_code == 400 and "recursion" in response.json()["error"]
    assert ask('root ::= ("a"*)*').json()["response"] == "a" * 8
    text = ask('root ::= w "b" w\nw ::= (s | l)*\ns ::= [ \\t]*\nl ::= "\\r"? "\\n"').json()
    assert (text["response"].strip(), text["done_reason"]) == ("b", "stop")
    assert ask('root ::= "a" ("" | "b")*').json()["response"].startswith("ab")
    deep = "root ::= " + "(" * 50000 + '"a"' + ")" * 50000
    chain = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(4999)) + 'r4999 ::= "a"'
    for grammar in (deep, chain):
        response = ask(grammar)
        assert response.status_code == 400 or response.json()["response"] == "a"
    assert server.runner_of(name).memory_info().rss - memory < 300 << 20


def test_large_bounds_hold_exactly(server: Any, add: Callable[..., str], model: Any) -> None:
    logits = {"1": 2.0, ",": 1.9, "]": 1.8, "[": 1.0, '"': 0.5, "}": 1.7, "{": 1.0, "a": 0.4, "<|eos|>": 0.0}
    name = add("lists", "flat_model", logits, ctx=16384)

    def ask(schema: dict[str, Any], name: str = name, **options: Any) -> Any:
        body = {"model": name, "prompt": "x", "format": schema}
        return server.post(
            GENERATE, {**body, "options": {"temperature": 1.0, "num_predict": 9000, "num_ctx": 12000, **options}}
        )

    items = {"type": "array", "items": {"enum": [1, 11]}, "minItems": 12, "maxItems": 900}
    answer = ask(items, temperature=0)
    assert len(json.loads(answer["response"])) == 900 and answer["done_reason"] == "stop"
    for seed in range(3):
        assert 12 <= len(json.loads(ask(items, seed=seed)["response"])) <= 900
    long = {"type": "string", "minLength": 3000, "maxLength": 3000}
    assert len(json.loads(ask(long, seed=1)["response"])) == 3000
    pair = {
        "type": "object",
        "properties": {"k": {"enum": ["u", "v"]}},
        "required": ["k"],
        "additionalProperties": False,
    }
    fifty = {"type": "array", "items": {"$ref": "#/$defs/p"}, "minItems": 50, "maxItems": 50, "$defs": {"p": pair}}
    assert len(json.loads(ask(fifty, model("random"), seed=2)["response"])) == 50


@pytest.mark.parametrize(
    "wish", ["json", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}]
)
def test_a_model_that_loves_blanks_does_not_drown_in_them(server: Any, add: Callable[..., str], wish: Any) -> None:
    name = add("blanks", "flat_model", BLANKS)
    for options in ({"temperature": 0}, *({"temperature": 1, "seed": seed} for seed in range(4))):
        flexible = (
            {"x-whitespace": "flexible", "type": "object"} if wish == "json" else {**wish, "x-whitespace": "flexible"}
        )
        for asked in (wish, flexible):
            start = time.monotonic()
            body = {"model": name, "prompt": "x", "format": asked, "options": {"num_predict": 400, **options}}
            answer = server.post(GENERATE, body)
            assert time.monotonic() - start < 20
            text = answer["response"]
            outside = "".join(text.split('"')[::2])  # no string has a quote in it: there is no backslash
            assert max(len(list(run)) for blank, run in itertools.groupby(f"{outside}.", str.isspace)) <= 64
            if answer["done_reason"] == "length":
                continue
            assert text == text.rstrip() and isinstance(json.loads(text), dict)

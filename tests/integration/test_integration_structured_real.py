"""SmolLM2 135M held to schemas, by the clients that people use, with the same text step by step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import ollama
import openai
import pydantic
import pytest

from localllm.grammar.gbnf import parse_gbnf
from localllm.grammar.twin import Matcher, matches

pytestmark = pytest.mark.integration
NAME = "smollm2-structured"
GRAMMARS = Path(__file__).parents[1] / "fixtures" / "grammar"
ASKED = [{"role": "user", "content": "Invent a person and describe them as JSON."}]


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class Pet(Strict):
    kind: str = pydantic.Field(pattern="^[a-z]{3,10}$")
    legs: int = pydantic.Field(ge=0, le=8)


class Person(Strict):
    """What pydantic makes a schema of with definitions, alternatives and formats."""

    name: str = pydantic.Field(min_length=1, max_length=20)
    age: int = pydantic.Field(ge=0, le=120)
    mail: str | None = pydantic.Field(max_length=40)
    pets: list[Pet] = pydantic.Field(max_length=2)


SCHEMA = Person.model_json_schema()


@pytest.fixture(scope="module")
def smollm2(server: Any, real_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The shared daemon, with the model in its store."""
    path = tmp_path_factory.mktemp("smollm2") / f"{NAME}.gguf"
    path.symlink_to(real_model("smollm2:135m"))
    server.add(path)
    yield server
    server.http.request("DELETE", "/api/delete", json={"model": NAME})


def test_hot_answers_are_valid(smollm2: Any) -> None:
    def ask(seed: int) -> str:
        options = {"temperature": 1.5, "seed": seed, "num_predict": 500}
        body = {"model": NAME, "messages": ASKED, "format": SCHEMA, "options": options}
        answer = smollm2.post("/api/chat", body)
        assert answer["done_reason"] == "stop"
        content: str = answer["message"]["content"]
        return content

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(ask, range(12)))
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
        Person.model_validate_json(text)
    assert len(set(texts)) > 6 and ask(3) == texts[3]


def test_the_ollama_client(smollm2: Any) -> None:
    with ollama.Client(smollm2.url, trust_env=False) as client:
        options = {"temperature": 0}
        whole = client.chat(NAME, ASKED, format=SCHEMA, options=options)
        Person.model_validate_json(whole.message.content or "")
        assert whole.done_reason == "stop"
        parts = client.chat(NAME, ASKED, format=SCHEMA, options=options, stream=True)
        assert "".join(part.message.content or "" for part in parts) == whole.message.content
        color = client.generate(NAME, "The color of the sky is", format={"enum": ["red", "blue"]}, options=options)
        assert color.response in ('"red"', '"blue"')


def test_the_openai_client(smollm2: Any) -> None:
    messages: Any = ASKED
    with openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="any", max_retries=0) as client:
        parsed = client.chat.completions.parse(model=NAME, messages=messages, response_format=Person, seed=1)
        assert isinstance(parsed.choices[0].message.parsed, Person)
        response = client.responses.parse(model=NAME, input="Invent a person.", text_format=Person)
        assert isinstance(response.output_parsed, Person)


def test_steps_give_the_text_of_jumps(smollm2: Any) -> None:
    """With log-probabilities nothing is evaluated ahead."""
    body = {"model": NAME, "messages": ASKED, "format": SCHEMA, "options": {"temperature": 0, "num_predict": 300}}
    jumped = smollm2.post("/api/chat", body)
    stepped = smollm2.post("/api/chat", {**body, "logprobs": True})
    assert jumped["message"] == stepped["message"]
    assert len(stepped["logprobs"]) == stepped["eval_count"] == jumped["eval_count"]


@pytest.mark.parametrize("name", sorted(path.stem for path in GRAMMARS.glob("*.gbnf")))
def test_sample_grammars_generate(smollm2: Any, name: str) -> None:
    text = (GRAMMARS / f"{name}.gbnf").read_text(encoding="utf-8")
    grammar = parse_gbnf(text)
    prompt = f"Write an example of {grammar_of(text)}"

    def ask(seed: int) -> Any:
        options = {"temperature": 1.5, "seed": seed, "num_predict": 60}
        return smollm2.post("/api/generate", {"model": NAME, "prompt": prompt, "grammar": text, "options": options})

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(6)))
    for answer in answers:
        data = answer["response"].encode()
        if answer["done_reason"] == "stop":
            assert matches(grammar, data), answer["response"]
        else:
            assert answer["done_reason"] == "length" and Matcher(grammar).accept_bytes(data), answer["response"]
    assert len({answer["response"] for answer in answers}) > 1 and any(answer["response"] for answer in answers)


def grammar_of(text: str) -> str:
    """What a grammar's first line says that it is for."""
    return text.splitlines()[0].removeprefix("# ")

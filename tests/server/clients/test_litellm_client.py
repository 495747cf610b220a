"""`litellm`, which aider calls, against the daemon: providers `ollama_chat`, `ollama`, `openai`, `anthropic`."""

import asyncio
import json
from typing import Any

import pytest

# A library's own warnings, of which its users see nothing, are not ours to mend.
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": PARAMETERS}}
PROVIDERS = ("ollama_chat/m", "openai/m", "anthropic/m")


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    module = pytest.importorskip("litellm")
    monkeypatch.setattr(module, "num_retries", 0)
    return module


@pytest.fixture
def places(litellm: Any, url: str) -> dict[str, dict[str, Any]]:
    """What to say to `completion` to reach the daemon through each provider."""
    ollama = {"api_base": url}
    openai = {"api_base": f"{url}/v1", "api_key": "any", "max_retries": 0}
    return {
        "ollama_chat/m": ollama,
        "ollama/m": ollama,
        "openai/m": openai,
        "anthropic/m": {"api_base": url, "api_key": "any"},
        "text-completion-openai/m": openai,
    }


@pytest.mark.parametrize("model", [*PROVIDERS, "ollama/m", "text-completion-openai/m"])
def test_a_completion(litellm: Any, places: dict[str, dict[str, Any]], model: str) -> None:
    answer = litellm.completion(model, user("one two"), temperature=0, max_tokens=9, **places[model])
    (choice,) = answer.choices
    assert "one two" in choice.message.content and choice.finish_reason == "stop"
    assert answer.usage.completion_tokens >= 2
    chunks = list(litellm.completion(model, user("one two"), stream=True, **places[model]))
    assert "one two" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("model", PROVIDERS)
def test_a_round_of_tools(litellm: Any, places: dict[str, dict[str, Any]], model: str) -> None:
    said = litellm.completion(model, user("!call"), tools=[TOOL], **places[model]).choices[0]
    (call,) = said.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
    assert said.finish_reason == "tool_calls"
    chunks = list(litellm.completion(model, user("!call"), tools=[TOOL], stream=True, **places[model]))
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    assert json.loads("".join(part.function.arguments for part in parts)) == {"a": 1}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": "2"}
    history = [*user("q"), said.message, result, *user("!request")]
    asked = json.loads(litellm.completion(model, history, tools=[TOOL], **places[model]).choices[0].message.content)
    calls, told = asked["messages"][1]["tool_calls"], asked["messages"][2]
    assert calls[0]["function"]["arguments"] == {"a": 1}
    assert (told["role"], told["content"], told["tool_name"]) == ("tool", "2", "add")


@pytest.mark.parametrize("model", ["ollama_chat/m", "openai/m"])
def test_thinking_and_structured_output(litellm: Any, places: dict[str, dict[str, Any]], model: str) -> None:
    said = litellm.completion(model, user("!think:hm one"), **places[model]).choices[0].message
    assert said.reasoning_content == "hm" and said.content.strip() == "one"
    schema = {"type": "json_schema", "json_schema": {"name": "Sum", "schema": PARAMETERS}}
    asked = litellm.completion(model, user("!request"), response_format=schema, **places[model])
    assert json.loads(asked.choices[0].message.content)["format"] == PARAMETERS


def test_what_aider_asks(litellm: Any, places: dict[str, dict[str, Any]]) -> None:
    model = "ollama_chat/m"
    asked = litellm.completion(
        model=model, messages=user("!request"), stream=True, temperature=0, num_ctx=8192, timeout=600, **places[model]
    )
    request = json.loads("".join(chunk.choices[0].delta.content or "" for chunk in asked))
    assert request["options"]["num_ctx"] == 8192 and request["options"]["temperature"] == 0


def test_embeddings(litellm: Any, places: dict[str, dict[str, Any]]) -> None:
    for model in ("ollama/m", "openai/m"):
        answer = litellm.embedding(model, input=["ab", "c"], **places[model])
        assert [item["embedding"][0] for item in answer.data] == [2.0, 1.0]
    assert (
        asyncio.run(litellm.aembedding("openai/m", input=["ab"], **places["openai/m"])).data[0]["embedding"][0] == 2.0
    )


@pytest.mark.parametrize("model", PROVIDERS)
def test_errors(litellm: Any, places: dict[str, dict[str, Any]], model: str) -> None:
    nope = model.replace("/m", "/nope")
    with pytest.raises(litellm.NotFoundError, match="model 'nope' not found"):
        litellm.completion(nope, user("x"), **places[model])

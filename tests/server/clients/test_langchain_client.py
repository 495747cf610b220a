"""`langchain-ollama` against the daemon: chats, streams, tools, structured output, embeddings, errors."""

import asyncio
import json
from typing import Any

import pytest

# A library's own warnings, of which its users see nothing, are not ours to mend.
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

SCHEMA = {"title": "add", "description": "a sum", "type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture
def langchain() -> Any:
    return pytest.importorskip("langchain_ollama")


@pytest.fixture
def chat(langchain: Any, url: str) -> Any:
    """chat(**settings): a ChatOllama of model `m`."""
    return lambda **settings: langchain.ChatOllama(model="m", base_url=url, **settings)


def add(a: int) -> int:
    """Adds one."""
    return a + 1


def test_a_chat(chat: Any) -> None:
    answer = chat(temperature=0, num_predict=9, seed=1, stop=["x"], keep_alive="2m").invoke("one two")
    assert answer.content == "one two " and answer.response_metadata["done_reason"] == "stop"
    assert answer.usage_metadata == {"input_tokens": 2, "output_tokens": 2, "total_tokens": 4}
    history = [("system", "be brief"), ("human", "q"), ("ai", "a"), ("human", "!request")]
    asked = json.loads(chat(num_ctx=99, top_k=7).invoke(history).content)
    assert [message["role"] for message in asked["messages"]] == ["system", "user", "assistant", "user"]
    assert (asked["options"]["num_ctx"], asked["options"]["top_k"]) == (99, 7)


def test_streams(chat: Any) -> None:
    pieces = list(chat().stream("one two !length"))
    assert "".join(piece.content for piece in pieces) == "one two " and len(pieces) > 2
    whole = sum(pieces[1:], pieces[0])
    assert whole.response_metadata["done_reason"] == "length" and whole.usage_metadata["output_tokens"] == 3

    async def gather() -> list[str]:
        return [piece.content async for piece in chat().astream("one two")]

    assert "".join(asyncio.run(gather())) == "one two "
    assert asyncio.run(chat().ainvoke("one")).content == "one "
    assert [answer.content for answer in chat().batch(["one", "two"])] == ["one ", "two "]


def test_thinking(chat: Any) -> None:
    answer = chat(reasoning=True).invoke("!think:hm one")
    assert answer.content == "one " and answer.additional_kwargs["reasoning_content"] == "hm"
    assert json.loads(chat(reasoning=False).invoke("!request").content)["think"] is False


def test_a_round_of_tools(chat: Any) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    model = chat().bind_tools([add])
    said = model.invoke("!call")
    (call,) = said.tool_calls
    assert (call["name"], call["args"]) == ("add", {"a": 1}) and call["id"]
    streamed = list(model.stream("!call"))
    assert [c["name"] for c in sum(streamed[1:], streamed[0]).tool_calls] == ["add"]
    result = messages.ToolMessage(content="2", tool_call_id=call["id"])
    history = [messages.HumanMessage("!call"), said, result, messages.HumanMessage("!request")]
    asked = json.loads(model.invoke(history).content)
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["add"]
    assert asked["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert asked["messages"][2] == {"role": "tool", "content": "2"}


def test_structured_output(chat: Any) -> None:
    assert chat().with_structured_output(SCHEMA).invoke('{"a":3}') == {"a": 3}
    model = chat().with_structured_output(SCHEMA, include_raw=True)
    assert json.loads(model.invoke("!request")["raw"].content)["format"]["properties"] == SCHEMA["properties"]
    assert chat().with_structured_output(SCHEMA, method="function_calling").invoke("!call") == {"a": 1}
    assert chat().with_structured_output(SCHEMA, method="json_mode").invoke('{"a":3}') == {"a": 3}


def test_embeddings(langchain: Any, url: str) -> None:
    embeddings = langchain.OllamaEmbeddings(model="m", base_url=url)
    first, second = embeddings.embed_documents(["ab", "c"])
    assert (first[:2], second[:2]) == ([2.0, 0.0], [1.0, 1.0])
    assert embeddings.embed_query("ab") == first
    assert asyncio.run(embeddings.aembed_query("ab")) == first


def test_a_text_model(langchain: Any, url: str) -> None:
    model = langchain.OllamaLLM(model="m", base_url=url)
    assert model.invoke("one two") == "one two " and "".join(model.stream("one two")) == "one two "


def test_errors(langchain: Any, chat: Any, url: str) -> None:
    ollama = pytest.importorskip("ollama")
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found"):
        langchain.ChatOllama(model="nope", base_url=url).invoke("x")
    with pytest.raises(ollama.ResponseError, match="scripted error"):
        list(chat().stream("one !error:RequestError"))
    assert langchain.ChatOllama(model="m", base_url=url, validate_model_on_init=True).invoke("one").content == "one "
    with pytest.raises(ValueError, match="nope"):
        langchain.ChatOllama(model="nope", base_url=url, validate_model_on_init=True)

"""Ollama's own client against the daemon: every call that it has and the daemon serves, sync and async."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ollama
import pytest

Add = Callable[..., None]

TOOLS_JINJA = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
THINK_JINJA = "<think></think>{% for m in messages %}{{ m.content }}{% endfor %}"


def add(a: int, b: int = 0) -> int:
    """Add two numbers.

    Args:
        a (int): the first
        b (int): the second
    """
    return a + b


@pytest.fixture
def client(start_live: Callable[..., Any], add_model: Add) -> Iterator[ollama.Client]:
    add_model("m", jinja=THINK_JINJA + TOOLS_JINJA, system="s", params={"stop": ["x"]})
    with ollama.Client(start_live().url, trust_env=False) as made:
        yield made


def test_generate(client: ollama.Client) -> None:
    whole = client.generate("m", "!think:hm one two", options={"temperature": 0, "num_ctx": 512, "numa": True})
    assert whole.response == "one two " and whole.thinking == "hm" and whole.done and whole.done_reason == "stop"
    assert whole.prompt_eval_count == 3 and whole.eval_count == 3 and (whole.total_duration or 0) > 0
    parts = list(client.generate("m", "one two", context=whole.context, stream=True, keep_alive="1m", logprobs=True))
    assert [part.response for part in parts] == ["one ", "two ", ""] and parts[-1].done
    assert client.generate("m").done_reason == "load" and client.generate("m", keep_alive=0).done_reason == "unload"
    assert client.generate("m", "one", raw=True).context is None
    asked = json.loads(client.generate("m", "!request").response)
    assert asked["truncate"] is None and asked["shift"] is True  # this client says neither


def test_chat_with_a_function_as_a_tool(client: ollama.Client) -> None:
    messages: list[Any] = [{"role": "user", "content": "!call"}]
    answer = client.chat("m", messages, tools=[add])
    (call,) = answer.message.tool_calls or []
    assert call.function.name == "add" and call.function.arguments == {"a": 1}
    messages += [answer.message, {"role": "tool", "tool_name": "add", "content": str(add(**call.function.arguments))}]
    assert client.chat("m", messages, tools=[add]).message.content == "1 "
    (told,) = _asked(client, tools=[add])["tools"]
    assert told["function"]["description"] == "Add two numbers."
    assert told["function"]["parameters"]["properties"]["a"] == {"type": "integer", "description": "the first"}


def _asked(client: ollama.Client, **more: Any) -> dict[str, Any]:
    """The request as the runner got it."""
    answer = client.chat("m", [{"role": "user", "content": "!request"}], **more)
    return dict(json.loads(answer.message.content or ""))


def test_chat_stream(client: ollama.Client) -> None:
    parts = list(
        client.chat("m", [ollama.Message(role="user", content="!think:hm one !call")], stream=True, think=True)
    )
    assert [part.message.thinking for part in parts] == ["hm", None, None, None]
    assert [part.message.content for part in parts] == ["", "one ", "", ""]
    assert (parts[2].message.tool_calls or [])[0].function.name == "add"
    assert [part.done for part in parts] == [False, False, False, True] and parts[-1].eval_count == 3


def test_structured_output_and_levels_reach_the_runner(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}, "required": ["z"]}
    asked = _asked(client, format=schema, think="low", top_logprobs=2, logprobs=True)
    assert asked["format"] == schema and list(asked["format"]["properties"]) == ["z", "a"]
    assert asked["think"] == "low" and asked["top_logprobs"] == 2 and asked["messages"][0]["role"] == "system"


def test_models(client: ollama.Client) -> None:
    (listed,) = client.list().models
    assert listed.model == "m:latest" and len(listed.digest or "") == 64 and listed.size and listed.modified_at
    assert listed.details is not None and listed.details.family == "llama"
    shown = client.show("m")
    assert shown.modelinfo["general.architecture"] == "llama" and shown.capabilities == [
        *("completion", "tools", "thinking"),
    ]
    assert shown.template and shown.parameters and shown.modelfile and shown.modified_at
    assert client.ps().models == []
    client.generate("m", keep_alive=-1)
    (running,) = client.ps().models
    assert running.model == "m:latest" and running.expires_at and running.context_length == 4096
    assert client.copy("m", "b:x").status == "success"
    assert sorted(model.model or "" for model in client.list().models) == ["b:x", "m:latest"]
    assert client.delete("m").status == "success" and client.delete("b:x").status == "success"
    assert client.list().models == []


def test_create_and_pull(client: ollama.Client, tiny_models: ModuleType, tmp_path: Path) -> None:
    assert client.create("c", from_="m", system="other", parameters={"top_k": 3}, license="MIT").status == "success"
    assert [part.status for part in client.create("d", from_="m", stream=True)][-1] == "success"
    assert "other" in (client.show("c").modelfile or "")
    tiny_models.random_model(tmp_path / "tiny.gguf")
    statuses = [part.status for part in client.pull(f"file:{tmp_path}/tiny.gguf", stream=True)]
    assert statuses[0] == "pulling manifest" and statuses[-1] == "success"
    assert client.pull(f"file:{tmp_path}/tiny.gguf").status == "success"
    assert len(client.list().models) == 4


def test_create_of_files(client: ollama.Client, tiny_models: ModuleType, tmp_path: Path) -> None:
    path, lora = tmp_path / "tiny.gguf", tmp_path / "lora.gguf"
    tiny_models.random_model(path)
    keys = [("general.type", tiny_models.STRING, "adapter"), ("general.architecture", tiny_models.STRING, "llama")]
    tiny_models.write_gguf(lora, keys, [])
    digest, adapter = client.create_blob(path), client.create_blob(lora)
    assert client.create_blob(path) == digest
    assert client.create("f", files={"tiny.gguf": digest}, adapters={"lora.gguf": adapter}).status == "success"
    shown = client.show("f")
    assert "ADAPTER" in (shown.modelfile or "") and shown.details and shown.details.family == "llama"
    parts = list(client.create("q", from_="f", quantize="F16", stream=True))
    assert "quantizing F32 model to F16" in [part.status for part in parts] and parts[-1].status == "success"
    details = client.show("q").details
    assert details and (details.quantization_level, details.parent_model) == ("F16", "")
    with pytest.raises(ollama.ResponseError, match="supplied file was not in GGUF format"):
        client.create("x", files={"a.gguf": client.create_blob(Path(__file__))})


def test_embed(client: ollama.Client) -> None:
    found = client.embed("m", ["ab", "c"])
    assert found.model == "m" and len(found.embeddings) == 2 and all(len(vector) > 1 for vector in found.embeddings)
    assert len(client.embed("m", "ab").embeddings) == 1
    assert len(client.embeddings("m", "ab").embedding) > 1


def test_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found") as missing:
        client.chat("nope", [{"role": "user", "content": "x"}])
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="scripted error") as failed:
        client.generate("m", "!error:ContextLengthError")
    assert failed.value.status_code == 400
    stream = client.generate("m", "a !error:RunnerError", stream=True)
    assert next(stream).response == "a "
    with pytest.raises(ollama.ResponseError, match="scripted error"):
        next(stream)
    with pytest.raises(ollama.ResponseError, match="does not support images"):
        client.generate("m", "x", images=[b"hi"])


def test_async(start_live: Callable[..., Any], add_model: Add, tiny_models: ModuleType, tmp_path: Path) -> None:
    add_model("m", jinja=TOOLS_JINJA)
    url = start_live().url
    tiny_models.random_model(tmp_path / "tiny.gguf")

    async def talk() -> None:
        async with ollama.AsyncClient(url, trust_env=False) as client:
            assert (await client.generate("m", "one two")).response == "one two "
            chat = await client.chat("m", [{"role": "user", "content": "!call"}], tools=[add], stream=True)
            parts = [part async for part in chat]
            assert (parts[0].message.tool_calls or [])[0].function.arguments == {"a": 1} and parts[-1].done
            assert (await client.chat("m", [{"role": "user", "content": "one"}])).message.content == "one "
            assert [part.response async for part in await client.generate("m", "a", stream=True)] == ["a ", ""]
            assert len((await client.embed("m", ["ab", "c"])).embeddings) == 2
            assert (await client.create("c", from_="m")).status == "success"
            assert (await client.pull(f"file:{tmp_path}/tiny.gguf")).status == "success"
            assert len((await client.list()).models) == 3 and len((await client.ps()).models) == 1
            assert (await client.show("c")).modelinfo and (await client.copy("c", "d")).status == "success"
            assert (await client.delete("d")).status == "success"
            with pytest.raises(ollama.ResponseError, match="not found"):
                await client.show("d")

    asyncio.run(talk())

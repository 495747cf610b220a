"""Anthropic's own client against the daemon: messages, streams, tools, thinking, counting, errors; sync and async."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")

Add = Callable[..., None]

TOOLS_JINJA = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
THINK_JINJA = "<think></think>{% for m in messages %}{{ m.content }}{% endfor %}"
TOOL = {"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {"a": {}}}}


def asked(text: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
def client(start_live: Callable[..., Any], add_model: Add) -> Any:
    add_model(jinja=THINK_JINJA + TOOLS_JINJA)
    with anthropic.Anthropic(base_url=start_live().url, api_key="any", max_retries=0) as made:
        yield made


def test_create(client: Any) -> None:
    message = client.messages.create(
        **asked("one two", system="s", stop_sequences=["x"], extra_body={"temperature": 0.5})
    )
    assert message.content[0].text == "one two " and message.stop_reason == "end_turn"
    assert message.role == "assistant" and message.model == "m" and message.id.startswith("msg_")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (2, 2)
    assert message._request_id.startswith("req_")


def test_stream(client: Any) -> None:
    with client.messages.stream(**asked("!think:hm one two !length")) as stream:
        assert list(stream.text_stream) == ["one ", "two "]
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == "hm" and message.content[0].signature
    assert message.stop_reason == "max_tokens"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (4, 4)


def test_tokens_of_the_cache(client: Any) -> None:
    with client.messages.stream(**asked("one !cached:1 !lost:3,512")) as stream:
        message = stream.get_final_message()
        assert stream.response.headers["x-localllm-truncated"] == "messages=3, tokens=512"
    for usage in (message.usage, client.messages.create(**asked("one !cached:1 two")).usage):
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (2, 1)


def test_raw_events(client: Any) -> None:
    types = [event.type for event in client.messages.create(**asked("one", stream=True))]
    assert types == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]


def test_a_round_of_tools(client: Any) -> None:
    first = asked("!call", tools=[TOOL], tool_choice={"type": "auto"})
    for message in (client.messages.create(**first), _streamed(client, first)):
        (call,) = message.content
        assert message.stop_reason == "tool_use" and call.type == "tool_use"
        assert call.name == "add" and call.input == {"a": 1} and call.id.startswith("toolu_")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "three"}]}
    turns = [*first["messages"], {"role": "assistant", "content": message.content}]
    turns += [{"role": "user", "content": [result, {"type": "text", "text": "so !stop:x"}]}]
    answer = client.messages.create(**{**first, "messages": turns, "stop_sequences": ["x"]})
    assert answer.content[0].text == "so " and (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "x")


def _streamed(client: Any, body: dict[str, Any]) -> Any:
    with client.messages.stream(**body) as stream:
        return stream.get_final_message()


def test_thinking_goes_back_and_forth(client: Any) -> None:
    body = asked("!think:hm so", thinking={"type": "enabled", "budget_tokens": 1024})
    message = client.messages.create(**body)
    turns = [*body["messages"], {"role": "assistant", "content": message.content}, {"role": "user", "content": "x"}]
    assert client.messages.create(**{**body, "messages": turns}).content[0].text == "x "


def test_count_tokens(client: Any) -> None:
    counted = client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "a b c"}], tools=[TOOL])
    assert counted.input_tokens == 3


def test_models(client: Any) -> None:
    (listed,) = client.models.list()
    assert listed.id == "m:latest" and listed.type == "model" and listed.display_name and listed.created_at.year > 2000
    assert client.models.retrieve("m") == listed
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nope")


def test_beta_calls(client: Any) -> None:
    message = client.beta.messages.create(**asked("one"), betas=["context-management-2025-06-27"])
    assert message.content[0].text == "one "


def test_errors_are_the_clients_own_classes(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**asked("x", model="nope"))
    assert missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.request_id == missing.value.body["request_id"]
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is required"):
        client.messages.create(**asked("x", max_tokens=0))
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(**asked("a !error:RunnerError"))
    with pytest.raises(anthropic.APIStatusError, match="scripted error"):
        _streamed(client, asked("a !error:RunnerError"))


def test_async(start_live: Callable[..., Any], add_model: Add) -> None:
    add_model()
    url = start_live().url

    async def talk() -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
            message = await client.messages.create(**asked("one"))
            assert message.content[0].text == "one "
            async with client.messages.stream(**asked("one two")) as stream:
                assert [text async for text in stream.text_stream] == ["one ", "two "]
                assert (await stream.get_final_message()).usage.output_tokens == 2
            counted = await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "a"}])
            assert counted.input_tokens == 1
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.create(**asked("x", model="nope"))

    asyncio.run(talk())

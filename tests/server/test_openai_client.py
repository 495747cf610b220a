"""OpenAI's own client against the daemon: chats, streams, tools, responses, embeddings, errors; sync and async."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

Add = Callable[..., None]

TOOLS_JINJA = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
THINK_JINJA = "<think></think>{% for m in messages %}{{ m.content }}{% endfor %}"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": PARAMETERS}}
FLAT_TOOL = {"type": "function", "name": "add", "description": "adds", "parameters": PARAMETERS, "strict": False}


class Sum(pydantic.BaseModel):
    a: int


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def url(start_live: Callable[..., Any], add_model: Add) -> str:
    add_model(jinja=THINK_JINJA + TOOLS_JINJA)
    return f"{start_live().url}/v1"


@pytest.fixture
def client(url: str) -> Any:
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as made:
        yield made


def test_chat(client: Any) -> None:
    chat = client.chat.completions
    answer = chat.create(model="m", messages=user("one two !think:hm"), max_completion_tokens=9, stop="x", seed=1)
    assert answer.choices[0].message.content == "one two " and answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.reasoning_content == "hm"
    assert answer.usage.total_tokens == 6 and answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.usage.completion_tokens_details.reasoning_tokens == 1
    several = chat.create(model="m", messages=user("!logprobs"), n=3, logprobs=True, top_logprobs=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    entry = several.choices[2].logprobs.content[0]
    assert (entry.token, entry.logprob, entry.bytes, entry.top_logprobs[0].token) == ("a", -0.5, [97], "b")
    asked = chat.create(model="m", messages=user("!request"), extra_body={"options": {"top_k": 7}, "num_ctx": 99})
    options = json.loads(asked.choices[0].message.content)["options"]
    assert (options["top_k"], options["num_ctx"]) == (7, 99)


def test_a_stream_of_a_chat(client: Any) -> None:
    chat = client.chat.completions
    options = {"include_usage": True}
    chunks = list(chat.create(model="m", messages=user("one two"), stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "one two "
    assert chunks[-1].usage.completion_tokens == 2 and chunks[-1].choices == []
    with chat.stream(model="m", messages=user("one !call !length"), tools=[TOOL]) as stream:
        types = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done", "tool_calls.function.arguments.done"} <= types
    (call,) = final.choices[0].message.tool_calls
    assert call.function.name == "add" and json.loads(call.function.arguments) == {"a": 1}
    assert final.choices[0].finish_reason == "tool_calls"


def test_what_a_prompt_lost_and_what_was_cached(client: Any) -> None:
    told = client.chat.completions.with_raw_response.create(model="m", messages=user("one !lost:3,512 !cached:2"))
    answer = told.parse()
    assert told.headers["x-localllm-truncated"] == "messages=3, tokens=512"
    assert answer.truncated == {"messages": 3, "tokens": 512, "shifted": 0}
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert client.responses.create(model="m", input="one !cached:2").usage.input_tokens_details.cached_tokens == 2
    asked = {"stream_options": {"include_usage": True}, "extra_body": {"return_progress": True}}
    chunks = list(client.completions.create(model="m", prompt="one !cached:2", stream=True, **asked))
    assert chunks[0].prompt_progress == {"total": 2, "cache": 2, "processed": 2, "time_ms": 0.0}
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 2
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="m", prompt="!error:ContextLengthError")
    assert caught.value.code == "context_length_exceeded"


def test_a_round_of_tools(client: Any) -> None:
    messages: list[Any] = user("!call")
    said = client.chat.completions.create(model="m", messages=messages, tools=[TOOL], tool_choice="auto")
    message = said.choices[0].message
    (call,) = message.tool_calls
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "3"}, *user("!request")]
    asked = json.loads(
        client.chat.completions.create(model="m", messages=messages, tools=[TOOL]).choices[0].message.content
    )
    assert asked["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert asked["messages"][2] == {"role": "tool", "content": "3", "tool_name": "add", "tool_call_id": call.id}


def test_parsing_into_a_model(client: Any) -> None:
    answer = client.chat.completions.parse(model="m", messages=user('{"a":3}'), response_format=Sum)
    assert answer.choices[0].message.parsed == Sum(a=3)
    asked = client.responses.create(
        model="m",
        input="!request",
        text={"format": {"type": "json_schema", "name": "Sum", "schema": Sum.model_json_schema()}},
    )
    assert json.loads(asked.output_text)["format"] == Sum.model_json_schema()
    assert client.responses.parse(model="m", input='{"a":4}', text_format=Sum).output_parsed == Sum(a=4)


def test_responses(client: Any) -> None:
    answer = client.responses.create(model="m", input="!think:hm one two", instructions="be brief")
    assert answer.output_text == "one two " and answer.status == "completed"
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0].summary[0].text == "hm" and answer.usage.total_tokens == 6
    assert answer.usage.output_tokens_details.reasoning_tokens == 1
    called = client.responses.create(model="m", input="!call", tools=[FLAT_TOOL])
    (call,) = called.output
    assert call.name == "add" and json.loads(call.arguments) == {"a": 1} and called.tools[0].name == "add"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    again = client.responses.create(
        model="m", input=[*user("q"), *answer.output, call, output, *user("!request")], tools=[FLAT_TOOL]
    )
    roles = [message["role"] for message in json.loads(again.output_text)["messages"]]
    assert roles == ["user", "assistant", "tool", "user"]
    assert client.responses.create(model="m", input="!length").incomplete_details.reason == "max_output_tokens"


def test_streams_of_responses(client: Any) -> None:
    with client.responses.stream(model="m", input="!think:hm one !call", tools=[FLAT_TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output_text == "one " and events[-1].type == "response.completed"
    for script, last in (
        ("one", "response.completed"),
        ("one !length", "response.incomplete"),
        ("one !crash", "response.failed"),
    ):
        events = list(client.responses.create(model="m", input=script, stream=True))
        assert events[-1].type == last and [event.sequence_number for event in events] == list(range(len(events)))
        assert all(type(event).__name__ != "BaseModel" for event in events), "events of types that the client knows"


def test_completions(client: Any) -> None:
    answer = client.completions.create(model="m", prompt=["a b", "c"], n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["a ba b ", "a ba b ", "cc ", "cc "]
    scored = client.completions.create(model="m", prompt="x !logprobs", logprobs=1).choices[0]
    assert scored.text == "x a" and scored.logprobs.tokens == ["a"] and scored.logprobs.text_offset == [2]
    chunks = list(client.completions.create(model="m", prompt=[97, 32, 98], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "a b "
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_embeddings_and_models(client: Any) -> None:
    answer = client.embeddings.create(model="m", input=["abc", "a"])
    assert [item.embedding[:2] for item in answer.data] == [[3, 0], [1, 1]]
    for given, encoding in (("abc", "float"), ([1, 2, 3], "base64"), ([[1, 2, 3]], openai.omit)):
        (item,) = client.embeddings.create(model="m", input=given, encoding_format=encoding).data
        assert isinstance(item.embedding, str) or item.embedding[0] == 3
    assert [model.id for model in client.models.list()] == ["m:latest"]
    assert client.models.retrieve("m").owned_by == "library"


def test_errors_are_the_clients_classes(client: Any) -> None:
    chat = client.chat.completions
    with pytest.raises(openai.NotFoundError) as missing:
        chat.create(model="none", messages=user("x"))
    assert missing.value.type == "not_found_error" and missing.value.body["message"] == "model 'none' not found"
    with pytest.raises(openai.BadRequestError) as bad:
        chat.create(model="m", messages=user("x"), n=0)
    assert bad.value.param == "n" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as long:
        chat.create(model="m", messages=user("!error:ContextLengthError"))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError, match="scripted error"):
        client.responses.create(model="m", input="!error:RunnerError")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.APIError, match="scripted error"):
        list(chat.create(model="m", messages=user("one !error:RunnerError"), stream=True))
    with pytest.raises(openai.BadRequestError, match="nothing is stored"):
        client.responses.create(model="m", input="x", previous_response_id="resp_1")


def test_the_async_client(url: str) -> None:
    async def talk() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            chat, responses = client.chat.completions, client.responses
            answers = await asyncio.gather(*(chat.create(model="m", messages=user(f"w{i}")) for i in range(4)))
            assert [answer.choices[0].message.content for answer in answers] == [f"w{i} " for i in range(4)]
            chunks = [chunk async for chunk in await chat.create(model="m", messages=user("a b"), stream=True)]
            assert [chunk.choices[0].delta.content for chunk in chunks] == ["a ", "b ", None]
            async with responses.stream(model="m", input="one") as stream:
                assert (await stream.get_final_response()).output_text == "one "
            assert (await client.embeddings.create(model="m", input="ab")).data[0].embedding[0] == 2
            assert [model.id async for model in client.models.list()] == ["m:latest"]
            with pytest.raises(openai.BadRequestError):
                await chat.create(model="m", messages=[])

    asyncio.run(talk())


def test_what_agents_send(client: Any) -> None:
    """Fields that agent frameworks send along: ignored where they change nothing, and in no way an error."""
    answer = client.chat.completions.create(
        model="m",
        messages=[{"role": "system", "content": [{"type": "text", "text": "s"}]}, *user("one")],
        temperature=0.0,
        top_p=1,
        n=1,
        presence_penalty=0,
        frequency_penalty=0,
        logit_bias={},
        user="someone",
        store=False,
        metadata={"run": "1"},
        service_tier="auto",
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        response_format={"type": "text"},
        stream=False,
        extra_headers={"OpenAI-Beta": "x"},
    )
    assert answer.choices[0].message.content == "one "

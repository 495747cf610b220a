"""POST /v1/chat/completions: the next message of a conversation, as OpenAI's clients ask for it.

It knows nothing of templates; what a field means in Ollama's terms is said here and in fields.py.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.messages import Chunk, Done, Message, Prefill
from localllm.server import chat
from localllm.server.binding import Anything, BindError, Bool, Int, List, Map, Place, String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import described
from localllm.server.openai import chunks, fields, tools
from localllm.server.openai.choices import replicas
from localllm.server.openai.conversation import native_messages
from localllm.server.openai.errors import InvalidRequestError
from localllm.server.openai.figures import compact_json, entries_of
from localllm.server.openai.shapes import CHAT_COMPLETION
from localllm.server.openai.sse import DATA, EVENT_STREAM
from localllm.server.streaming import Record, RecordsResponse

CHAT_COMPLETION_REQUEST = Struct(
    "openai.ChatCompletionRequest",
    {
        **fields.OPTION_FIELDS,
        **fields.EXTRA_FIELDS,
        **fields.STREAM_FIELDS,
        "model": String(),
        "messages": List(Anything()),
        "tools": List(Anything()),
        "tool_choice": Anything(),
        "parallel_tool_calls": Bool(default=True),
        "functions": Anything(),
        "n": Int(default=None),
        "max_tokens": Int(default=None),
        "max_completion_tokens": Int(default=None),
        "logprobs": Bool(),
        "top_logprobs": Int(),
        "response_format": Map(),
        "reasoning_effort": Anything(),
        "reasoning": Struct("openai.Reasoning", {"effort": Anything()}),
        "chat_template_kwargs": Map(),
    },
)


@described(
    "the next message of a conversation",
    body=CHAT_COMPLETION_REQUEST,
    answer=CHAT_COMPLETION,
    streams=EVENT_STREAM,
    errors=(404, 500, 503),
)
async def chat_completions(request: Request) -> Response:
    """The endpoint."""
    return await answer(daemon_of(request), await read(request, CHAT_COMPLETION_REQUEST))


async def answer(daemon: Daemon, body: dict[str, Any]) -> RecordsResponse:
    """The answer to a bound body. Raises: as chat.ask."""
    if not body["messages"]:
        raise BindError("[] is too short - 'messages'", "messages")
    n = fields.n_choices(body)
    # A long conversation takes a second and more, in which the daemon has others to answer.
    native, choice = await asyncio.to_thread(_native, body)
    turn = await chat.ask(
        daemon,
        native,
        tool_choice=choice,
        parallel_tool_calls=body["parallel_tool_calls"],
        **fields.own_fields(body),
    )
    assert turn.request is not None, "there are messages"
    head = chunks.head(turn.asked, "chatcmpl", "chat.completion.chunk")
    speakers = [_Speaker(index, body["logprobs"]) for index in range(n)]
    requests = replicas(turn.request, n)
    records = chunks.stream(head, turn.asked, requests, speakers, n=n, with_usage=fields.wants_usage(body))
    return RecordsResponse(records, stream=body["stream"], fold=fold, wire=DATA, told=turn.asked.headers)


def _native(body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The body as Ollama's chat has it, and the choice of tools. Raises: InvalidRequestError, BindError."""
    offered, choice = tools.choose(tools.native_tools(body["tools"]), body["tool_choice"])
    if body["functions"]:
        raise InvalidRequestError("functions", "is not supported", hint="use `tools`")
    if body["top_logprobs"] and not body["logprobs"]:
        raise InvalidRequestError("top_logprobs", "needs `logprobs` to be true")
    limit = body["max_tokens"] if body["max_completion_tokens"] is None else body["max_completion_tokens"]
    native = {
        "model": body["model"],
        "messages": native_messages(body["messages"]),
        "tools": offered,
        "format": fields.response_format_of(body),
        "options": fields.options_of(body, limit),
        "logprobs": body["logprobs"],
        "top_logprobs": body["top_logprobs"],
        "progress": fields.wants_progress(body),
    }
    bound = chat.CHAT_REQUEST.bind(native, Place("ChatRequest"))
    return {**bound, **fields.native_fields(body), "think": _think(body)}, choice


def _think(body: dict[str, Any]) -> bool | str | None:
    effort = (body["reasoning"] or {}).get("effort")
    if body["reasoning_effort"] is not None or effort is None:
        think = fields.think_of(body, body["reasoning_effort"], "reasoning_effort")
    else:
        think = fields.think_of(body, effort, "reasoning.effort")
    # Go templates know no further variables, so this one is said in both ways.
    is_off = (body["chat_template_kwargs"] or {}).get("enable_thinking") is False
    return False if think is None and is_off else think


@dataclass
class _Speaker:
    """One choice of a stream: what it has said decides how it goes on."""

    index: int
    with_logprobs: bool
    has_spoken: bool = False
    has_called: bool = False

    def choices(self, message: Message) -> Iterator[Record]:
        """The `choices` entries that tell a message of the runner: a delta each, and how it finished."""
        if isinstance(message, Chunk):
            self.has_called = self.has_called or bool(message.tool_calls)
            for delta in _deltas(message):
                yield self._choice(delta, message)
        elif isinstance(message, Prefill):
            yield self._choice({})
        elif isinstance(message, Done):
            if not self.has_spoken:
                yield self._choice({})
            reason = "tool_calls" if self.has_called else message.done_reason
            yield {"index": self.index, "delta": {}, "finish_reason": reason}

    def _choice(self, delta: Record, chunk: Chunk | None = None) -> Record:
        first = {} if self.has_spoken else {"role": "assistant", "content": ""}
        self.has_spoken = True
        choice = {"index": self.index, "delta": {**first, **delta}, "finish_reason": None}
        if self.with_logprobs and chunk and "content" in delta:
            choice["logprobs"] = {"content": entries_of(chunk)}
        return choice


def _deltas(chunk: Chunk) -> Iterator[Record]:
    """Thinking, text and tool calls, each in a delta of its own."""
    if chunk.thinking:
        # Ollama's name, and the one that llama-server's clients look for.
        yield {"reasoning": chunk.thinking, "reasoning_content": chunk.thinking}
    if chunk.text or entries_of(chunk):
        yield {"content": chunk.text}
    if chunk.tool_calls:
        yield {"tool_calls": [_tool_call(call) for call in chunk.tool_calls]}


def _tool_call(call: dict[str, Any]) -> Record:
    function = call["function"]
    told = {"name": function["name"], "arguments": compact_json(function["arguments"])}
    return {"id": call["id"], "index": function["index"], "type": "function", "function": told}


def fold(records: list[Record]) -> Record:
    """The whole answer of a stream's chunks, the counts of tokens among them."""
    return {**chunks.fold(records, _whole_choice), "object": "chat.completion"}


def _whole_choice(index: int, parts: list[Record]) -> Record:
    deltas = [part["delta"] for part in parts]
    message: Record = {"role": "assistant", "content": "".join(delta.get("content", "") for delta in deltas)}
    for name in ("reasoning", "reasoning_content"):
        if text := "".join(delta.get(name, "") for delta in deltas):
            message[name] = text
    if calls := [call for delta in deltas for call in delta.get("tool_calls", [])]:
        message["tool_calls"] = calls
    choice: Record = {"index": index, "message": message, "finish_reason": parts[-1]["finish_reason"]}
    told = [part["logprobs"]["content"] for part in parts if "logprobs" in part]
    return {**choice, "logprobs": {"content": [*chain.from_iterable(told)]}} if told else choice

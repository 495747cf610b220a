"""POST /v1/responses: the next items of a conversation that the request holds whole; nothing is stored.

It knows nothing of templates, nor of how items are told in events.
"""

import asyncio
import time
import uuid
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.messages import Chunk, Done, GenerateRequest, Prefill
from localllm.server import chat, inference
from localllm.server.binding import Anything, Bool, Int, List, Map, Place, String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import described
from localllm.server.errors import status_of
from localllm.server.inference import Asked
from localllm.server.openai import errors, fields, tools
from localllm.server.openai.errors import InvalidRequestError, told
from localllm.server.openai.figures import reports, response_usage
from localllm.server.openai.responses.events import Events
from localllm.server.openai.responses.items import native_messages
from localllm.server.openai.shapes import RESPONSE
from localllm.server.openai.sse import EVENT_STREAM, EVENTS
from localllm.server.streaming import Record, Records, RecordsResponse

LOGPROBS = "message.output_text.logprobs"
THOUGHTS = "reasoning.encrypted_content"
TRUNCATIONS = ("auto", "disabled")
# Tools that OpenAI's own servers run. A model can do without them, so that they are left out of what it may use.
HOSTED_TOOLS = ("web_search", "web_search_preview")

RESPONSE_REQUEST = Struct(
    "openai.ResponsesRequest",
    {
        **fields.OPTION_FIELDS,
        **fields.EXTRA_FIELDS,
        "model": String(),
        "input": Anything(),
        "instructions": String(),
        "stream": Bool(),
        "tools": List(Anything()),
        "tool_choice": Anything(),
        "parallel_tool_calls": Bool(default=True),
        "max_output_tokens": Int(default=None),
        "reasoning": Struct("openai.Reasoning", {"effort": Anything(), "summary": Anything()}),
        "text": Struct("openai.ResponseText", {"format": Map(), "verbosity": Anything()}),
        "truncation": String(),
        "include": List(String()),
        "top_logprobs": Int(),
        "metadata": Map(),
        "previous_response_id": Anything(),
        "conversation": Anything(),
        "prompt": Anything(),
        "background": Bool(),
        "chat_template_kwargs": Map(),
    },
)


@described(
    "the next items of a conversation",
    body=RESPONSE_REQUEST,
    answer=RESPONSE,
    streams=EVENT_STREAM,
    errors=(404, 500, 503),
)
async def responses(request: Request) -> Response:
    """The endpoint."""
    return await answer(daemon_of(request), await read(request, RESPONSE_REQUEST))


async def answer(daemon: Daemon, body: dict[str, Any]) -> RecordsResponse:
    """The answer to a bound body. Raises: as chat.ask."""
    _refuse_what_needs_a_store(body)
    # A long conversation takes a second and more, in which the daemon has others to answer.
    native, offered, choice = await asyncio.to_thread(_native, body)
    turn = await chat.ask(
        daemon,
        native,
        tool_choice=choice,
        parallel_tool_calls=body["parallel_tool_calls"],
        **fields.own_fields(body),
    )
    assert turn.request is not None, "there are messages"
    response = _response(turn.asked, body, offered)
    wants_logprobs, keeps_thinking = turn.request.logprobs, THOUGHTS in (body["include"] or [])
    events = Events(response, with_logprobs=wants_logprobs, keeps_thinking=keeps_thinking)
    records = _records(turn.asked, turn.request, events, is_streamed=body["stream"])
    return RecordsResponse(records, stream=body["stream"], fold=_fold, wire=EVENTS, told=turn.asked.headers)


def _refuse_what_needs_a_store(body: dict[str, Any]) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        if body[name] is not None:
            raise InvalidRequestError(name, "is not supported: nothing is stored", hint="send the whole input")
    if body["background"]:
        raise InvalidRequestError("background", "is not supported: nothing is stored")


def _tools(given: list[Any]) -> tools.Tools:
    """The functions among the tools. Raises: InvalidRequestError."""
    functions = [tool for tool in given if not (isinstance(tool, dict) and tool.get("type") in HOSTED_TOOLS)]
    return tools.native_tools(functions)


def _native(body: dict[str, Any]) -> tuple[dict[str, Any], tools.Tools, Any]:
    """The body as Ollama's chat has it, its tools, and the choice of them. Raises: InvalidRequestError, BindError."""
    offered, choice = tools.choose(_tools(body["tools"] or []), body["tool_choice"])
    messages = native_messages(body["input"], body["instructions"])
    if not messages:
        raise InvalidRequestError("input", "must not be empty")
    if body["truncation"] not in ("", *TRUNCATIONS):
        raise InvalidRequestError("truncation", f"expected auto or disabled, not {told(body['truncation'])}")
    text_format = (body["text"] or {}).get("format")
    native = {
        "model": body["model"],
        "messages": messages,
        "tools": offered,
        "format": fields.format_of(body, text_format, "text.format", "text.format.schema"),
        "options": fields.options_of(body, body["max_output_tokens"]),
        "logprobs": LOGPROBS in (body["include"] or []) or body["top_logprobs"] > 0,
        "top_logprobs": body["top_logprobs"],
    }
    bound = chat.CHAT_REQUEST.bind(native, Place("ChatRequest"))
    think = fields.think_of(body, (body["reasoning"] or {}).get("effort"), "reasoning.effort")
    own = fields.native_fields(body)
    if body["truncation"] == "disabled":
        own["truncate"] = False
    return {**bound, **own, "think": think}, offered, choice


def _response(asked: Asked, body: dict[str, Any], offered: tools.Tools) -> Record:
    """The response before anything was answered; what was asked for is told back."""
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body["instructions"] or None,
        "max_output_tokens": body["max_output_tokens"],
        "metadata": body["metadata"] or {},
        "model": asked.shown,
        "output": [],
        "parallel_tool_calls": body["parallel_tool_calls"],
        "previous_response_id": None,
        "reasoning": body["reasoning"] or {"effort": None, "summary": None},
        "store": False,
        "temperature": asked.options["temperature"],
        "text": {"format": (body["text"] or {}).get("format") or {"type": "text"}},
        "tool_choice": body["tool_choice"] or "auto",
        "tools": [{"type": "function", **tool["function"]} for tool in offered],
        "top_logprobs": body["top_logprobs"],
        "top_p": asked.options["top_p"],
        "truncation": body["truncation"] or "auto",
        "usage": None,
    }


async def _records(asked: Asked, request: GenerateRequest, events: Events, *, is_streamed: bool) -> Records:
    """The events; in a stream, what goes wrong after the first is told in the last."""
    has_begun = False
    try:
        async with aclosing(inference.run(asked, request)) as messages:
            async for message, turn in messages:
                if isinstance(message, Prefill):
                    continue  # an error may still have a status
                for event in () if has_begun else events.begin():
                    has_begun = True
                    yield event
                if isinstance(message, Chunk):
                    for event in events.chunk(message):
                        yield event
                elif isinstance(message, Done):
                    events.response.update(reports(asked, message, turn))
                    for event in events.end(message, response_usage(message.stats)):
                        yield event
    except Exception as error:
        if not (is_streamed and has_begun):
            raise
        yield events.fail(_failure(error))


def _failure(error: Exception) -> Record:
    code = "server_error" if status_of(error) >= 500 else "invalid_prompt"
    return {"code": code, "message": errors.body_of(error)["error"]["message"]}


def _fold(records: list[Record]) -> Record:
    return dict(records[-1]["response"])

"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, and the tokens that a conversation takes.

It knows nothing of prompts.
"""

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from localllm.errors import ContextLengthError
from localllm.messages import Chunk, Done, GenerateRequest, Prefill, Rendered
from localllm.server import chat, inference
from localllm.server.anthropic import errors, events
from localllm.server.anthropic.request import MESSAGES_REQUEST, Asked, translated
from localllm.server.anthropic.shapes import MESSAGE, TOKEN_COUNT
from localllm.server.binding import read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import SSE, described
from localllm.server.streaming import Records, RecordsResponse, Wire


@described(
    "the next message of a conversation", body=MESSAGES_REQUEST, answer=MESSAGE, streams=SSE, errors=(404, 500, 503)
)
async def messages(request: Request) -> Response:
    """The next message of a conversation."""
    body = await read(request, MESSAGES_REQUEST)
    asked = await asyncio.to_thread(translated, body)
    turn, runner_request = await _ask(daemon_of(request), asked)
    records = _events(turn, runner_request, events.Answer(turn.shown, asked.stop_sequences))
    return RecordsResponse(
        events.with_pings(records) if body["stream"] else records,
        stream=body["stream"],
        fold=events.fold,
        wire=_wire(errors.new_request_id()),
        told=turn.headers,
    )


@described("tokens of a conversation", body=MESSAGES_REQUEST, answer=TOKEN_COUNT, errors=(404, 500, 503))
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a conversation has, whether or not it fits the context."""
    body = await read(request, MESSAGES_REQUEST)
    asked = await asyncio.to_thread(translated, body, needs_max_tokens=False)
    # What constrains an answer is no part of the prompt.
    choice = asked.tool_choice if asked.tool_choice == "none" else None
    asked = replace(asked, body={**asked.body, "truncate": False, "format": None}, tool_choice=choice)
    turn, runner_request = await _ask(daemon_of(request), asked)
    return RecordsResponse(_count(turn, runner_request), stream=False, wire=_wire(errors.new_request_id()))


ROUTES = (
    Route("/v1/messages", messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
)


def _wire(request_id: str) -> Wire:
    return Wire(
        media_type=f"{SSE}; charset=utf-8",
        encode=events.encode,
        refuse=partial(errors.response_of, request_id=request_id),
        fail=lambda error: events.encode(errors.body_of(error, request_id)),
        headers={errors.REQUEST_ID_HEADER: request_id, "cache-control": "no-cache"},
    )


async def _ask(daemon: Daemon, asked: Asked) -> tuple[inference.Asked, GenerateRequest]:
    """The runner's request. A model that cannot think is not asked to; stop sequences are added to the model's own."""
    turn = await chat.ask(
        daemon,
        asked.body,
        thinks_if_able=True,
        tool_choice=asked.tool_choice,
        parallel_tool_calls=asked.parallel_tool_calls,
    )
    assert turn.request is not None, "there are messages"
    options = turn.request.options
    stops = [*options["stop"], *asked.stop_sequences]
    return turn.asked, replace(turn.request, options={**options, "stop": stops})


async def _events(turn: inference.Asked, request: GenerateRequest, answer: events.Answer) -> Records:
    """The answer's events; the first one, when the request has its turn, says how many tokens the prompt has."""
    async with aclosing(inference.run(turn, request)) as received:
        async for message, _ in received:
            if isinstance(message, Prefill):
                yield answer.start(message)
                yield events.PING
            elif isinstance(message, Chunk):
                for event in answer.add(message):
                    yield event
            elif isinstance(message, Done):
                for event in answer.finish(message):
                    yield event


async def _count(turn: inference.Asked, request: GenerateRequest) -> Records:
    try:
        yield {"input_tokens": await _n_input(turn, request)}
    except ContextLengthError as error:
        yield {"input_tokens": error.n_prompt}


async def _n_input(turn: inference.Asked, request: GenerateRequest) -> int:
    """Tokens of the prompt that a request becomes. Raises: what the request itself would before it is evaluated."""
    rendering = replace(request, id=uuid.uuid4().hex, debug_render_only=True)
    async with aclosing(inference.run(turn, rendering)) as received:
        async for message, _ in received:
            if isinstance(message, Rendered):
                return len(message.tokens)
    raise AssertionError("a rendering ends with a Rendered or an error")

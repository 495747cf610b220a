"""POST /api/render (our own): the prompt that a chat or a completion becomes, as text and as token ids.

The body is one of /api/chat, or, without `messages`, one of /api/generate. Nothing is generated.
"""

from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from localllm.messages import GenerateRequest, Rendered
from localllm.server import chat, generate, inference
from localllm.server.binding import Int, List, String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.inference import Asked
from localllm.server.streaming import Record, Records, RecordsResponse

RENDER_REQUEST = Struct("api.RenderRequest", {**generate.GENERATE_REQUEST.fields, **chat.CHAT_REQUEST.fields})
RENDER_ANSWER = Struct(
    "api.RenderResponse", {"model": String(default=None), "prompt": String(default=None), "tokens": List(Int())}
)


@described("the prompt of a chat or a completion", body=RENDER_REQUEST, answer=RENDER_ANSWER, errors=(404, 500, 503))
async def render(request: Request) -> Response:
    """The endpoint: a request as for /api/chat or /api/generate to {"prompt", "tokens"}."""
    body = await read(request, RENDER_REQUEST)
    asked, runner_request = await _ask(daemon_of(request), {**body, "_debug_render_only": True})
    return RecordsResponse(_rendered(asked, runner_request), stream=False)


async def _ask(daemon: Daemon, body: Record) -> tuple[Asked, GenerateRequest]:
    if body["messages"] is None:
        asked, runner_request = await generate.ask(daemon, body)
    else:
        turn = await chat.ask(daemon, body)
        asked, runner_request = turn.asked, turn.request
    if runner_request is None:
        raise APIError(400, "there is nothing to render: expected messages, or a prompt")
    return asked, runner_request


async def _rendered(asked: Asked, request: GenerateRequest) -> Records:
    async with aclosing(inference.run(asked, request)) as received:
        async for message, _ in received:
            if isinstance(message, Rendered):
                yield {"model": asked.shown, "prompt": message.prompt, "tokens": message.tokens}

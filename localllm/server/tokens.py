"""POST /api/tokenize and /api/detokenize (our own): a model's token ids of a text, and back."""

import uuid

from starlette.requests import Request
from starlette.responses import Response

from localllm.durations import parse_keep_alive
from localllm.messages import Detokenize, Tokenize
from localllm.server import inference
from localllm.server.binding import Bool, Int, Judged, List, Map, String, Struct, read
from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.inference import Asked
from localllm.server.shapes import TEXT, TOKENS
from localllm.server.streaming import Records, RecordsResponse

_COMMON = {"model": String(), "keep_alive": Judged(parse_keep_alive), "options": Map()}
TOKENIZE_REQUEST = Struct(
    "api.TokenizeRequest",
    {**_COMMON, "text": String(default=None), "add_special": Bool(default=True), "parse_special": Bool(default=True)},
)
DETOKENIZE_REQUEST = Struct("api.DetokenizeRequest", {**_COMMON, "tokens": List(Int())})


@described("token ids of a text", body=TOKENIZE_REQUEST, answer=TOKENS, errors=(404, 500, 503))
async def tokenize(request: Request) -> Response:
    """The endpoint: {"model", "text"} to {"tokens"}."""
    return RecordsResponse(_tokenize(await _begin(request, TOKENIZE_REQUEST, "text")), stream=False)


@described("the text of token ids", body=DETOKENIZE_REQUEST, answer=TEXT, errors=(404, 500, 503))
async def detokenize(request: Request) -> Response:
    """The endpoint: {"model", "tokens"} to {"text"}."""
    return RecordsResponse(_detokenize(await _begin(request, DETOKENIZE_REQUEST, "tokens")), stream=False)


async def _begin(request: Request, struct: Struct, needed: str) -> Asked:
    body = await read(request, struct)
    if not body["model"].strip():
        raise APIError(400, "model is required")
    if body[needed] is None:
        raise APIError(400, f"{needed} is required")
    return await inference.begin(daemon_of(request), body)


async def _tokenize(asked: Asked) -> Records:
    body = asked.body
    wanted = Tokenize(uuid.uuid4().hex, body["text"], body["add_special"], body["parse_special"])
    async with await asked.daemon.scheduler.lease(asked.want, asked.keep_alive_ns) as lease:
        yield {"model": asked.shown, "tokens": await lease.tokenize(wanted)}


async def _detokenize(asked: Asked) -> Records:
    wanted = Detokenize(uuid.uuid4().hex, asked.body["tokens"])
    async with await asked.daemon.scheduler.lease(asked.want, asked.keep_alive_ns) as lease:
        yield {"model": asked.shown, "text": await lease.detokenize(wanted)}

"""POST /api/embed and /api/embeddings: vectors of texts; and how other dialects get them. It knows no tokens."""

import array
import base64
import sys
import time
import uuid
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.durations import parse_keep_alive
from localllm.messages import Embed
from localllm.server import inference
from localllm.server.binding import Anything, Bool, Int, Judged, List, Map, String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.inference import Asked
from localllm.server.streaming import Record, Records, RecordsResponse
from localllm.server.truncation import header_of, truncated_field

_COMMON = {"model": String(), "keep_alive": Judged(parse_keep_alive), "options": Map()}
EMBED_REQUEST = Struct(
    "api.EmbedRequest", {**_COMMON, "input": Anything(), "truncate": Bool(default=True), "dimensions": Int()}
)
EMBEDDING_REQUEST = Struct("api.EmbeddingRequest", {**_COMMON, "prompt": String()})
EMBED_ANSWER = Struct(
    "api.EmbedResponse",
    {
        "model": String(default=None),
        "embeddings": List(List(Anything())),
        "total_duration": Int(default=None),
        "load_duration": Int(default=None),
        "prompt_eval_count": Int(default=None),
        "truncated": Map(),
    },
)
EMBEDDING_ANSWER = Struct("api.EmbeddingResponse", {"embedding": List(Anything()), "truncated": Map()})


@dataclass(frozen=True)
class EmbeddingsResult:
    """The vectors of some inputs, in their order: `encoded` are base64 of float32 components, little-endian.

    `n_tokens` counts what the model read of each input; `truncated` how many inputs lost how many tokens, if any did.
    """

    encoded: list[str]
    n_tokens: list[int]
    total_duration_ns: int = 0
    load_duration_ns: int = 0
    truncated: dict[str, Any] | None = None

    def floats(self) -> list[list[float]]:
        """The vectors as numbers that JSON writes in at most nine digits, which is what a float32 holds."""
        return [_floats(text) for text in self.encoded]


def _floats(text: str) -> list[float]:
    values = array.array("f", base64.b64decode(text))
    if sys.byteorder == "big":
        values.byteswap()
    return [float(f"{value:.9g}") for value in values]


async def embed(
    daemon: Daemon,
    model_name: str,
    inputs: list[str] | list[list[int]],
    *,
    truncate: bool = True,
    dimensions: int = 0,
    keep_alive: int | None = None,
    options: dict[str, Any] | None = None,
    normalise: bool = True,
) -> EmbeddingsResult:
    """The vectors of texts, or of lists of token ids; without any, the model is loaded and the result is empty.

    `keep_alive` is in nanoseconds, None for the daemon's setting; `dimensions` 0 keeps all components. An input too
    long loses its end, or, without `truncate`, is refused. Whoever awaits this may be cancelled: then so is the work.

    Raises: APIError (404: no such model), InvalidNameError, OptionError, and what the runner raises: RequestError,
    ContextLengthError.
    """
    body = {"model": model_name, "keep_alive": keep_alive, "options": options}
    asked = await begin(daemon, body)
    if not inputs:
        return await _load_only(asked)
    request = Embed(uuid.uuid4().hex, inputs, truncate, dimensions, normalise, asked.options, lora=asked.lora)
    async with await daemon.scheduler.lease(asked.want, asked.keep_alive_ns) as lease:
        load_ns = time.monotonic_ns() - asked.started_ns
        answer = await lease.embed(request)
    total_ns = time.monotonic_ns() - asked.started_ns
    return EmbeddingsResult(answer.vectors, answer.n_tokens, total_ns, load_ns, answer.truncated)


async def begin(daemon: Daemon, body: dict[str, Any]) -> Asked:
    """`inference.begin`, with the words that these endpoints have for a model that is not there. Raises: as embed."""
    shown = body["model"]
    if not shown.strip():
        raise APIError(404, "model '' not found")
    try:
        return await inference.begin(daemon, body)
    except APIError as error:
        if error.status != 404:
            raise
        hint = error.hint or f"localllm pull {shown}"
        raise APIError(404, f'model "{shown}" not found, try pulling it first', hint=hint) from error


async def _load_only(asked: Asked) -> EmbeddingsResult:
    await (inference.unload(asked) if asked.unloads else inference.preload(asked))
    elapsed_ns = time.monotonic_ns() - asked.started_ns
    return EmbeddingsResult([], [], elapsed_ns, elapsed_ns)


@described("vectors of texts, of length 1", body=EMBED_REQUEST, answer=EMBED_ANSWER, errors=(404, 500, 503))
async def api_embed(request: Request) -> Response:
    """/api/embed: {"model", "input": text or texts} to {"embeddings"}, each of length 1."""
    body = await read(request, EMBED_REQUEST)
    headers: dict[str, str] = {}
    records = _embed(daemon_of(request), body, input_texts(body["input"]), headers)
    return RecordsResponse(records, stream=False, told=headers)


def input_texts(value: Any) -> list[str]:
    """The texts of an `input`: a text or a list of them; nothing, or an empty text, is none.

    Raises: APIError with status 400.
    """
    if value is None or value == "":
        return []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise APIError(400, "invalid input type")
    return texts


async def _embed(daemon: Daemon, body: dict[str, Any], inputs: list[str], headers: dict[str, str]) -> Records:
    shared = {name: body[name] for name in ("truncate", "dimensions", "keep_alive", "options")}
    result = await embed(daemon, body["model"], inputs, **shared)
    headers.update(header_of(result.truncated))
    record: Record = {"model": body["model"], "embeddings": result.floats()}
    figures = {
        "total_duration": result.total_duration_ns,
        "load_duration": result.load_duration_ns,
        "prompt_eval_count": sum(result.n_tokens),
        "truncated": result.truncated,
    }
    yield {**record, **{name: value for name, value in figures.items() if value}}


@described("the vector of a text", body=EMBEDDING_REQUEST, answer=EMBEDDING_ANSWER, errors=(404, 500, 503))
async def api_embeddings(request: Request) -> Response:
    """/api/embeddings, the older one: {"model", "prompt"} to {"embedding"}, as long as the model made it."""
    body = await read(request, EMBEDDING_REQUEST)
    if not body["model"].strip():
        raise APIError(400, "model is required")
    headers: dict[str, str] = {}
    return RecordsResponse(_embedding(daemon_of(request), body, headers), stream=False, told=headers)


async def _embedding(daemon: Daemon, body: dict[str, Any], headers: dict[str, str]) -> Records:
    inputs = [body["prompt"]] if body["prompt"] else []
    shared = {name: body[name] for name in ("keep_alive", "options")}
    result = await embed(daemon, body["model"], inputs, normalise=False, **shared)
    headers.update(header_of(result.truncated))
    vectors = result.floats()
    yield {"embedding": vectors[0] if vectors else [], **truncated_field(result.truncated)}

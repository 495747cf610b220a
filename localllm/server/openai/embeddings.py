"""POST /v1/embeddings: vectors of texts or token ids, as numbers or as base64; it does not know how they are made."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.server import embed
from localllm.server.binding import Anything, Bool, Int, Map, String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import described
from localllm.server.openai import fields
from localllm.server.openai.errors import InvalidRequestError, told
from localllm.server.openai.shapes import EMBEDDINGS
from localllm.server.openai.sse import DATA
from localllm.server.streaming import Records, RecordsResponse
from localllm.server.truncation import header_of, truncated_field

ENCODINGS = ("float", "base64")

EMBEDDING_REQUEST = Struct(
    "openai.EmbedRequest",
    {
        "model": String(),
        "input": Anything(),
        "dimensions": Int(),
        "encoding_format": String(default="float"),
        "truncate": Bool(default=True),
        "keep_alive": fields.EXTRA_FIELDS["keep_alive"],
        "options": Map(),
        "num_ctx": fields.OPTION_FIELDS["num_ctx"],
    },
)


@described("vectors of texts, of length 1", body=EMBEDDING_REQUEST, answer=EMBEDDINGS, errors=(404, 500, 503))
async def embeddings(request: Request) -> Response:
    """The endpoint."""
    return answer(daemon_of(request), await read(request, EMBEDDING_REQUEST))


def answer(daemon: Daemon, body: dict[str, Any]) -> RecordsResponse:
    """The answer to a bound body. Raises: InvalidRequestError."""
    if body["encoding_format"] not in ENCODINGS:
        raise InvalidRequestError("encoding_format", f"expected float or base64, not {told(body['encoding_format'])}")
    headers: dict[str, str] = {}
    records = _records(daemon, body, inputs_of(body["input"]), headers)
    return RecordsResponse(records, stream=False, wire=DATA, told=headers)


def inputs_of(value: Any) -> list[str] | list[list[int]]:
    """What to embed: a text, texts, token ids, or lists of token ids. Raises: InvalidRequestError."""
    items = [value] if isinstance(value, str) or fields.is_tokens(value) else value
    if isinstance(items, list) and value not in ("", []):
        if all(isinstance(item, str) for item in items) or all(map(fields.is_tokens, items)):
            return items
        raise InvalidRequestError("input", "invalid input: expected texts or lists of token ids, all of one kind")
    raise InvalidRequestError("input", f"invalid input: expected a text, texts or token ids, not {told(value)}")


async def _records(
    daemon: Daemon, body: dict[str, Any], inputs: list[str] | list[list[int]], headers: dict[str, str]
) -> Records:
    num_ctx = {} if body["num_ctx"] is None else {"num_ctx": body["num_ctx"]}
    result = await embed.embed(
        daemon,
        body["model"],
        inputs,
        truncate=body["truncate"],
        dimensions=body["dimensions"],
        keep_alive=body["keep_alive"],
        options={**(body["options"] or {}), **num_ctx},
    )
    headers.update(header_of(result.truncated))
    vectors: list[Any] = result.encoded if body["encoding_format"] == "base64" else result.floats()
    n_tokens = sum(result.n_tokens)
    yield {
        "object": "list",
        "data": [{"object": "embedding", "embedding": vector, "index": i} for i, vector in enumerate(vectors)],
        "model": body["model"],
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        **truncated_field(result.truncated),
    }

"""POST /api/rerank and /v1/rerank: how well documents answer a query; it does not know how a model judges that.

The fields are those of Jina, Cohere and llama-server; with `texts` in place of `documents` the answer is the list of
text-embeddings-inference.
"""

import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from localllm.durations import parse_keep_alive
from localllm.messages import Rank, Scores
from localllm.server.binding import Anything, Bool, Int, Judged, List, Map, String, Struct, read
from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from localllm.server.embed import begin
from localllm.server.errors import APIError
from localllm.server.inference import Asked
from localllm.server.openai import refuse
from localllm.server.streaming import OLLAMA, Record, Records, RecordsResponse, Wire
from localllm.server.truncation import header_of, truncated_field

RERANK_REQUEST = Struct(
    "api.RerankRequest",
    {
        "model": String(),
        "query": Anything(),
        "documents": Anything(),
        "texts": Anything(),
        "top_n": Int(default=None),
        "return_documents": Bool(),
        "return_text": Bool(),
        "truncate": Bool(default=True),
        "keep_alive": Judged(parse_keep_alive),
        "options": Map(),
    },
)


RERANK_ANSWER = Struct(
    "api.RerankResponse",
    {
        "id": String(default=None),
        "model": String(default=None),
        "object": String(default=None),
        "usage": Map(),
        "results": List(Map()),
        "truncated": Map(),
    },
)


@described(
    "documents by how well they answer a query", body=RERANK_REQUEST, answer=RERANK_ANSWER, errors=(404, 500, 503)
)
async def rerank(request: Request) -> Response:
    """The endpoint: {"model", "query", "documents"} to {"results": [{"index", "relevance_score"}]}, best first."""
    body = await read(request, RERANK_REQUEST)
    query, documents = _query(body), _documents(body)
    if body["top_n"] is not None and body["top_n"] < 1:
        raise APIError(400, f'"top_n" must be at least 1, not {body["top_n"]}')
    asked = await begin(daemon_of(request), body)
    wanted = Rank(uuid.uuid4().hex, query, documents, body["truncate"], asked.options, asked.lora)
    wire = Wire(refuse=refuse) if request.url.path.startswith("/v1") else OLLAMA
    return RecordsResponse(_ranked(asked, wanted), stream=False, fold=_unwrapped, wire=wire, told=asked.headers)


def _query(body: dict[str, Any]) -> str:
    query = body["query"]
    if not isinstance(query, str) or not query:
        raise APIError(400, '"query" must be a non-empty string')
    return query


def _documents(body: dict[str, Any]) -> list[str]:
    """The texts of the documents, which are strings or objects with a `text`."""
    name = "documents" if body["documents"] is not None else "texts"
    items = body[name]
    if not isinstance(items, list) or not items:
        raise APIError(400, '"documents" must be a non-empty array of strings or of objects with a "text"')
    return [_text(item, f"{name}[{i}]") for i, item in enumerate(items)]


def _text(item: Any, place: str) -> str:
    text = item.get("text") if isinstance(item, dict) else item
    if not isinstance(text, str):
        raise APIError(400, f'"{place}" must be a string or an object with a "text"')
    return text


async def _ranked(asked: Asked, wanted: Rank) -> Records:
    async with await asked.daemon.scheduler.lease(asked.want, asked.keep_alive_ns) as lease:
        scores = await lease.rank(wanted)
    asked.headers.update(header_of(scores.truncated))
    best_first = sorted(range(len(scores.scores)), key=lambda i: -scores.scores[i])[: asked.body["top_n"]]
    if asked.body["documents"] is None:
        yield {"": [_tei_result(asked.body, wanted, scores, i) for i in best_first]}
        return
    n_tokens = sum(scores.n_tokens)
    yield {
        "id": wanted.id,
        "model": asked.shown,
        "object": "list",
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        "results": [_result(asked.body, wanted, scores, i) for i in best_first],
        **truncated_field(scores.truncated),
    }


def _result(body: dict[str, Any], wanted: Rank, scores: Scores, i: int) -> Record:
    result: Record = {"index": i, "relevance_score": scores.scores[i]}
    return {**result, "document": {"text": wanted.documents[i]}} if body["return_documents"] else result


def _tei_result(body: dict[str, Any], wanted: Rank, scores: Scores, i: int) -> Record:
    result: Record = {"index": i, "score": scores.scores[i]}
    return {**result, "text": wanted.documents[i]} if body["return_text"] else result


def _unwrapped(records: list[Record]) -> Any:
    """The answer: a list where it is nothing but one."""
    return records[-1].get("", records[-1])


ROUTES = tuple(
    Route(path, rerank, methods=["POST"]) for path in ("/api/rerank", "/v1/rerank", "/v1/reranking", "/rerank")
)

"""/v1/batches: requests of a file, made while nobody waits for another answer."""

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.durations import NS_PER_S, parse_go_duration
from localllm.server.binding import Bool, Int, List, Map, String, Struct, read
from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.openai_batches.batch_store import INPUT, Batch
from localllm.server.openai_batches.files import existing_file
from localllm.server.openai_batches.pages import PAGE, page
from localllm.server.openai_batches.stores import batches_of, files_of
from localllm.server.openai_batches.validation import ENDPOINTS
from localllm.server.streaming import json_response

MAX_WINDOW_S = 30 * 24 * 3600
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
BATCH_REQUEST = Struct(
    "openai.BatchRequest",
    {"input_file_id": String(), "endpoint": String(), "completion_window": String(default="24h"), "metadata": Map()},
)
_ID = String(default=None)
BATCH = Struct(
    "openai.Batch",
    {
        **dict.fromkeys(("id", "object", "endpoint", "input_file_id", "completion_window", "status"), _ID),
        **dict.fromkeys(("output_file_id", "error_file_id"), _ID),
        "created_at": Int(default=None),
        "expires_at": Int(default=None),
        "request_counts": Map(),
        "errors": Map(),
        "metadata": Map(),
    },
)
BATCHES = Struct(
    "openai.BatchList", {"object": String(default=None), "data": List(BATCH), "has_more": Bool(default=None)}
)


@described("makes the requests of an uploaded file", body=BATCH_REQUEST, answer=BATCH, errors=(404, 500))
async def create(request: Request) -> Response:
    """The endpoint."""
    body = await read(request, BATCH_REQUEST)
    if body["endpoint"] not in ENDPOINTS:
        raise APIError(400, f"endpoint: expected {', '.join(ENDPOINTS[:-1])} or {ENDPOINTS[-1]}")
    window_s = _window_s(body["completion_window"])
    _check_metadata(body["metadata"] or {})
    daemon = daemon_of(request)
    files, batches = files_of(daemon), batches_of(daemon)
    source = existing_file(files, body["input_file_id"])
    fields = {name: body[name] for name in ("input_file_id", "endpoint", "completion_window", "metadata")}
    batch = batches.new(**fields, expires_at=int(time.time()) + window_s)
    await asyncio.to_thread(files.link, source.id, batches.path(batch.id, INPUT))
    batches.put(batch)
    request.app.state.batch_worker.wake()
    return json_response(batch.as_json())


def _window_s(text: str) -> int:
    try:
        window_s = parse_go_duration(text) // NS_PER_S
    except ValueError:
        window_s = 0
    if not 1 <= window_s <= MAX_WINDOW_S:
        raise APIError(400, 'completion_window: expected a duration such as "24h", at most 720h')
    return window_s


def _check_metadata(metadata: dict[str, Any]) -> None:
    fits = all(
        isinstance(value, str) and len(key) <= MAX_METADATA_KEY and len(value) <= MAX_METADATA_VALUE
        for key, value in metadata.items()
    )
    if len(metadata) > MAX_METADATA or not fits:
        raise APIError(
            400,
            f"metadata: expected at most {MAX_METADATA} texts, with keys of at most {MAX_METADATA_KEY} characters "
            f"and values of at most {MAX_METADATA_VALUE}",
        )


@described("the batches, newest first", query=PAGE, answer=BATCHES, errors=(400,))
async def batches(request: Request) -> Response:
    """The endpoint."""
    found = await asyncio.to_thread(batches_of(daemon_of(request)).all)
    return json_response(page([batch.as_json() for batch in found], request))


@described("how far a batch is", answer=BATCH, errors=(404,))
async def batch(request: Request) -> Response:
    """The endpoint."""
    return json_response(_found(request).as_json())


@described("ends a batch; what is done stays", answer=BATCH, errors=(400, 404, 500))
async def cancel(request: Request) -> Response:
    """The endpoint."""
    found = _found(request)
    if found.status == "cancelling":
        return json_response(found.as_json())
    if found.status not in ("validating", "in_progress"):
        raise APIError(400, f"Cannot cancel a batch with status '{found.status}'.")
    cancelled = batches_of(daemon_of(request)).change(found.id, status="cancelling")
    request.app.state.batch_worker.wake()
    return json_response(cancelled.as_json())


def _found(request: Request) -> Batch:
    batch_id = request.path_params["batch_id"]
    found = batches_of(daemon_of(request)).get(batch_id)
    if found is None:
        raise APIError(404, f"No batch found with id '{batch_id}'.")
    return found

"""POST /api/load (our own): brings a model into memory and tells how far it is; it generates nothing."""

import asyncio
import contextlib

from starlette.requests import Request
from starlette.responses import Response

from localllm.durations import parse_keep_alive
from localllm.messages import Progress
from localllm.scheduler import Lease
from localllm.server import inference
from localllm.server.binding import Bool, Judged, Map, String, Struct, read
from localllm.server.daemon import daemon_of
from localllm.server.describe import NDJSON, described
from localllm.server.errors import APIError
from localllm.server.inference import Asked
from localllm.server.shapes import PROGRESS
from localllm.server.streaming import Record, Records, RecordsResponse

LOAD_REQUEST = Struct(
    "api.LoadRequest",
    {"model": String(), "stream": Bool(default=None), "keep_alive": Judged(parse_keep_alive), "options": Map()},
)


@described("brings a model into memory", body=LOAD_REQUEST, answer=PROGRESS, streams=NDJSON, errors=(404, 500, 503))
async def load(request: Request) -> Response:
    """The endpoint. The last record says what the model takes: `context_length`, `memory` in bytes."""
    body = await read(request, LOAD_REQUEST)
    if not body["model"].strip():
        raise APIError(400, "model is required")
    asked = await inference.begin(daemon_of(request), body)
    return RecordsResponse(_load(asked), stream=body["stream"] is not False)


async def _load(asked: Asked) -> Records:
    heard: asyncio.Queue[Progress | None] = asyncio.Queue()
    leasing = asyncio.create_task(asked.daemon.scheduler.lease(asked.want, asked.keep_alive_ns, heard.put_nowait))
    leasing.add_done_callback(lambda _: heard.put_nowait(None))
    try:
        while (progress := await heard.get()) is not None:
            yield _progress_record(progress)
        lease = await leasing
        lease.release()
        yield {"status": "success", "context_length": lease.ready.n_ctx, "memory": lease.ready.memory_bytes}
    finally:
        await _give_up(leasing)


def _progress_record(progress: Progress) -> Record:
    record: Record = {"status": progress.status}
    if progress.total:
        record |= {"total": progress.total, "completed": progress.completed}
    return record


async def _give_up(leasing: "asyncio.Task[Lease]") -> None:
    leasing.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        (await leasing).release()

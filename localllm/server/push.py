"""POST /api/push: sends a model to the registry of its name and tells how far it is; it knows nothing of uploads."""

from starlette.requests import Request
from starlette.responses import Response

from localllm.server.binding import Bool, String, Struct, read
from localllm.server.daemon import daemon_of
from localllm.server.describe import NDJSON, described
from localllm.server.errors import APIError
from localllm.server.pull import access, told_by_a_thread
from localllm.server.shapes import PROGRESS
from localllm.server.streaming import RecordsResponse
from registry.names import parse_name
from registry.push import push as push_model

PUSH_REQUEST = Struct(
    "api.PushRequest",
    {
        "model": String(),
        "name": String(),
        "insecure": Bool(),
        "username": String(),
        "password": String(),
        "stream": Bool(default=None),
    },
)
SESSIONS = "uploads"


@described("sends a model to a registry", body=PUSH_REQUEST, answer=PROGRESS, streams=NDJSON, errors=(404, 500))
async def push(request: Request) -> Response:
    """The endpoint."""
    body = await read(request, PUSH_REQUEST)
    text = (body["model"] or body["name"]).strip()
    if not text:
        raise APIError(400, "model is required")
    daemon, name = daemon_of(request), parse_name(text)
    allowed, sessions = access(daemon, body), daemon.settings.state_dir / SESSIONS
    records = told_by_a_thread(
        daemon,
        f"push {name.short}",
        lambda cancel: push_model(name, daemon.store, access=allowed, sessions=sessions, cancel=cancel),
    )
    return RecordsResponse(records, stream=body["stream"] is not False)

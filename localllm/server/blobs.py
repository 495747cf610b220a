"""HEAD /api/blobs/<digest>: whether the store has a blob."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from registry.digests import parse_digest


@described("whether the store has a blob", errors=(400, 404))
async def has_blob(request: Request) -> Response:
    """The endpoint: 200 or 404, 400 for what is no digest."""
    digest = parse_digest(request.path_params["digest"])
    found = await asyncio.to_thread(daemon_of(request).store.blobs.has, digest)
    return Response(status_code=200 if found else 404)

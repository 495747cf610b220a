"""DELETE /api/delete: removes a name from the store, and the model from memory once its requests have ended."""

import asyncio
import contextlib

from starlette.requests import Request
from starlette.responses import Response

from localllm.server.binding import String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.errors import APIError
from localllm.server.lookup import model_name
from registry.errors import InvalidNameError, ModelNotFoundError, RegistryError
from registry.names import Name

DELETE_REQUEST = Struct("api.DeleteRequest", {"model": String(), "name": String()})


async def delete(request: Request) -> Response:
    """The endpoint; its answer has no body."""
    body = await read(request, DELETE_REQUEST)
    shown = body["model"] or body["name"]
    if not shown.strip():
        raise APIError(400, "model is required")
    daemon = daemon_of(request)
    try:
        name = model_name(shown)
    except InvalidNameError as error:
        raise APIError(400, f'name "{shown}" is invalid', hint=error.hint) from error
    digest = await _digest(daemon, name)
    try:
        await asyncio.to_thread(daemon.store.delete, name)
    except ModelNotFoundError:
        raise APIError(404, f"model '{shown}' not found") from None
    await daemon.scheduler.expire(digest)
    return Response()


async def _digest(daemon: Daemon, name: Name) -> str:
    """The digest of the manifest; a model too broken to have one can be deleted all the same."""
    with contextlib.suppress(RegistryError):
        return (await asyncio.to_thread(daemon.store.manifest, name)).digest
    return ""

"""DELETE /api/delete: removes a name from the store, and the model from memory once its requests have ended.

Repacked weights go with the last name of their file.
"""

import asyncio
import contextlib

from starlette.requests import Request
from starlette.responses import Response

from kernels_cpu import cache_files
from localllm import env
from localllm.server.binding import String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.lookup import model_name
from registry.errors import InvalidNameError, ModelNotFoundError, RegistryError
from registry.manifest import Manifest
from registry.names import Name

DELETE_REQUEST = Struct("api.DeleteRequest", {"model": String(), "name": String()})


@described("removes a name, and what no other name uses", body=DELETE_REQUEST, errors=(404, 500))
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
    manifest = await _manifest(daemon, name)
    try:
        await asyncio.to_thread(daemon.store.delete, name)
    except ModelNotFoundError:
        raise APIError(404, f"model '{shown}' not found") from None
    daemon.scheduler.forget(name.short)
    await daemon.scheduler.expire(manifest.digest if manifest else "")
    if manifest:
        await asyncio.to_thread(_forget_files, daemon, manifest)
    return Response()


async def _manifest(daemon: Daemon, name: Name) -> Manifest | None:
    """The manifest of a model; one too broken to have it can be deleted all the same."""
    with contextlib.suppress(RegistryError):
        return await asyncio.to_thread(daemon.store.manifest, name)
    return None


def _forget_files(daemon: Daemon, manifest: Manifest) -> None:
    """Remove what is kept in the cache folder for files that left the store: other names may need the others."""
    if not all(daemon.store.blobs.has(layer.digest, layer.size) for layer in manifest.of_kind("model")):
        cache_files.remove_model(daemon.settings.cache_dir or env.cache_dir(), manifest.weights_digest)

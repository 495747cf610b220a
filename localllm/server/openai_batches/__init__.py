"""OpenAI's files and batches: requests of a file, made while nobody waits for another answer.

It knows nothing of what the requests ask: they go the way of all others.
"""

from starlette.routing import Route
from starlette.types import ASGIApp

from localllm.server.daemon import Daemon
from localllm.server.openai_batches import batches, files
from localllm.server.openai_batches.stores import batches_of, files_of
from localllm.server.openai_batches.worker import BatchWorker

__all__ = ["ROUTES", "BatchWorker", "worker_of"]

ROUTES = (
    Route("/v1/files", files.upload, methods=["POST"]),
    Route("/v1/files", files.files, methods=["GET"]),
    Route("/v1/files/{file_id}", files.file, methods=["GET"]),
    Route("/v1/files/{file_id}", files.delete, methods=["DELETE"]),
    Route("/v1/files/{file_id}/content", files.content, methods=["GET"]),
    Route("/v1/batches", batches.create, methods=["POST"]),
    Route("/v1/batches", batches.batches, methods=["GET"]),
    Route("/v1/batches/{batch_id}", batches.batch, methods=["GET"]),
    Route("/v1/batches/{batch_id}/cancel", batches.cancel, methods=["POST"]),
)


def worker_of(app: ASGIApp, daemon: Daemon) -> BatchWorker:
    """What runs a daemon's batches, with requests to `app`."""
    return BatchWorker(app, daemon, batches_of(daemon), files_of(daemon))

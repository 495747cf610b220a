"""The daemon's HTTP application: which function answers which path; it knows nothing of what they do."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from localllm.server import (
    anthropic,
    blobs,
    chat,
    cloud,
    copy,
    create,
    delete,
    embed,
    generate,
    listing,
    load,
    metrics,
    openai,
    openai_batches,
    openapi,
    pull,
    push,
    render,
    rerank,
    show,
    status,
    tokens,
)
from localllm.server.access import AccessMiddleware
from localllm.server.answer_counts import AnswerCounts, CountingMiddleware
from localllm.server.daemon import Daemon
from localllm.server.errors import STATUS, APIError, Refusal, Refusals, refusal, response_of
from localllm.server.key_check import KeyMiddleware
from localllm.server.limits import LimitsMiddleware
from localllm.server.unforeseen import UnforeseenMiddleware
from registry.errors import RegistryError
from registry.store import Store

logger = logging.getLogger(__name__)

ROUTES = (
    Route("/", status.root, methods=["GET"]),
    Route("/api/version", status.version, methods=["GET"]),
    Route("/api/tags", listing.tags, methods=["GET"]),
    Route("/api/ps", listing.ps, methods=["GET"]),
    Route("/api/show", show.show, methods=["POST"]),
    Route("/api/generate", generate.generate, methods=["POST"]),
    Route("/api/chat", chat.chat, methods=["POST"]),
    Route("/api/embed", embed.api_embed, methods=["POST"]),
    Route("/api/embeddings", embed.api_embeddings, methods=["POST"]),
    *rerank.ROUTES,
    Route("/api/render", render.render, methods=["POST"]),
    Route("/api/load", load.load, methods=["POST"]),
    Route("/api/tokenize", tokens.tokenize, methods=["POST"]),
    Route("/api/detokenize", tokens.detokenize, methods=["POST"]),
    Route("/api/pull", pull.pull, methods=["POST"]),
    Route("/api/push", push.push, methods=["POST"]),
    Route("/api/create", create.create, methods=["POST"]),
    Route("/api/copy", copy.copy, methods=["POST"]),
    Route("/api/delete", delete.delete, methods=["DELETE"]),
    Route("/api/blobs/{digest}", blobs.has_blob, methods=["HEAD"]),
    Route("/api/blobs/{digest}", blobs.take_blob, methods=["POST"]),
    *cloud.ROUTES,
    *anthropic.ROUTES,
    Route("/metrics", metrics.metrics, methods=["GET"]),
    Route("/openapi.json", openapi.openapi, methods=["GET"]),
    Route("/docs", openapi.docs, methods=["GET"]),
    *openai.ROUTES,
    *openai_batches.ROUTES,
)


def create_app(daemon: Daemon) -> Starlette:
    """The application of one daemon; its lifespan starts and stops the scheduler."""
    settings = daemon.settings
    counts = AnswerCounts()
    app = Starlette(
        routes=list(ROUTES),
        middleware=[
            Middleware(CountingMiddleware, counts=counts, routes=ROUTES),
            Middleware(AccessMiddleware, is_loopback=settings.is_loopback, origins=settings.origins),
            Middleware(UnforeseenMiddleware, refusals=REFUSALS),
            Middleware(KeyMiddleware, keys=settings.keys, refusals=REFUSALS),
            Middleware(
                LimitsMiddleware,
                max_body_bytes=settings.max_body_bytes,
                max_upload_bytes=settings.max_upload_bytes,
                timeout_s=settings.client_timeout_s,
            ),
        ],
        exception_handlers={
            HTTPException: _http_error,
            APIError: _error,
            **{kind: _error for kind, _ in STATUS},
        },
        lifespan=_lifespan,
    )
    app.state.daemon = daemon
    app.state.answer_counts = counts
    app.state.refusals = REFUSALS
    app.state.batch_worker = openai_batches.worker_of(app, daemon)
    return app


REFUSALS: Refusals = (
    (anthropic.PREFIX, anthropic.response_of),
    ("/v1", openai.refuse),
    ("/", response_of),
)


def _refusal(request: Request) -> Refusal:
    return refusal(REFUSALS, request.url.path)


async def _error(request: Request, error: Exception) -> Response:
    return _refusal(request)(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """An unknown path or method: plain text from Ollama's endpoints, an error like any other in the dialects."""
    assert isinstance(error, HTTPException)
    text = {404: "404 page not found", 405: "405 method not allowed"}.get(error.status_code, error.detail)
    refuse = _refusal(request)
    if refuse is response_of:
        return PlainTextResponse(text, error.status_code, error.headers)
    response = refuse(APIError(error.status_code, f"{text}: {request.method} {request.url.path}"))
    response.headers.update(error.headers or {})
    return response


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    daemon: Daemon = app.state.daemon
    await daemon.scheduler.start()
    batches = asyncio.create_task(app.state.batch_worker.run(), name="batches")
    pruning = asyncio.create_task(asyncio.to_thread(_prune, daemon.store)) if daemon.settings.prune else None
    try:
        yield
    finally:
        daemon.cancel_pulls()
        batches.cancel()
        await asyncio.gather(batches, return_exceptions=True)
        await daemon.scheduler.stop()
        if pruning is not None:
            await pruning


def _prune(store: Store) -> None:
    try:
        report = store.prune()
    except (RegistryError, OSError) as error:
        logger.warning("the model store was not tidied up: %s", error)
        return
    if report.n_removed:
        logger.info("removed %d unused blobs, %d bytes", report.n_removed, report.freed_bytes)

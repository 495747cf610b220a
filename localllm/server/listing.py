"""GET /api/tags and /api/ps: the models in the store, and those in memory."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.scheduler import RunningModel
from localllm.server.capabilities import listed_capabilities
from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from localllm.server.lookup import details
from localllm.server.shapes import MODELS
from localllm.server.streaming import json_response
from localllm.server.times import format_local
from registry.errors import RegistryError
from registry.manifest import ModelConfig
from registry.names import parse_name
from registry.store import ModelSummary, Store


@described("the models in the store", answer=MODELS)
async def tags(request: Request) -> Response:
    """The models in the store, newest first."""
    store = daemon_of(request).store
    records = await asyncio.to_thread(lambda: [_tag(store, model) for model in store.models()])
    return json_response({"models": records})


def _tag(store: Store, model: ModelSummary) -> dict[str, Any]:
    lengths = ("context_length", "embedding_length")
    known = {key: model.config.fields[key] for key in lengths if key in model.config.fields}
    capabilities = listed_capabilities(store, model.name)
    return {
        "name": model.name.short,
        "model": model.name.short,
        "modified_at": format_local(model.modified_ns),
        "size": model.size,
        "digest": model.digest,
        "details": {**details(model.config), **known},
        **({"capabilities": capabilities} if capabilities else {}),
    }


@described("the models in memory", answer=MODELS)
async def ps(request: Request) -> Response:
    """The models in memory, those that stay longest first."""
    daemon = daemon_of(request)
    running = daemon.scheduler.running()
    records = await asyncio.to_thread(lambda: [_running(daemon.store, model) for model in running])
    return json_response({"models": records})


def _running(store: Store, running: RunningModel) -> dict[str, Any]:
    model = running.model
    return {
        "name": model.name,
        "model": model.name,
        "size": running.size_bytes,
        "digest": model.digest,
        "details": _details_by_name(store, model.name),
        "expires_at": format_local(running.expires_at_ns),
        "size_vram": 0,
        "context_length": running.n_ctx,
        "kv_cache_type": running.kv_cache_type,
    }


def _details_by_name(store: Store, name: str) -> dict[str, Any]:
    """The details of a loaded model; it may have been deleted since."""
    try:
        return details(store.summary(parse_name(name)).config)
    except RegistryError:
        return details(ModelConfig())

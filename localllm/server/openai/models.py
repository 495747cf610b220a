"""GET /v1/models and /v1/models/{model}: the models in the store; it knows nothing of what is loaded.

Clients of Anthropic's get them in that shape.
"""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from localllm.durations import NS_PER_S
from localllm.server import lookup
from localllm.server.anthropic import models as anthropic
from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.openai.shapes import MODEL, MODELS
from localllm.server.streaming import Record, json_response
from registry.errors import BrokenModelError, ModelNotFoundError
from registry.store import ModelSummary


@described("the models in the store", answer=MODELS)
async def models(request: Request) -> Response:
    """The models in the store, newest first; an empty list where there are none (Ollama answers null there)."""
    found = await asyncio.to_thread(daemon_of(request).store.models)
    if anthropic.is_asked(request):
        return json_response(anthropic.page(found))
    return json_response({"object": "list", "data": [_record(model) for model in found]})


@described("a model in the store", answer=MODEL, errors=(400, 404))
async def model(request: Request) -> Response:
    """One model. Raises: InvalidNameError, APIError with status 404."""
    shown = request.path_params["model"]
    name = lookup.model_name(shown)
    try:
        found = await asyncio.to_thread(daemon_of(request).store.summary, name)
    except (ModelNotFoundError, BrokenModelError):
        raise APIError(404, f"model '{shown}' not found", hint=f"localllm pull {shown}") from None
    return json_response((anthropic.record if anthropic.is_asked(request) else _record)(found))


def _record(model: ModelSummary) -> Record:
    return {
        "id": model.name.short,
        "object": "model",
        "created": model.modified_ns // NS_PER_S,
        "owned_by": model.name.namespace,
    }

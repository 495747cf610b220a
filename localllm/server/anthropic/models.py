"""The list of models in Anthropic's shape, for its clients; which path serves it is not known here."""

from starlette.requests import Request

from localllm.server.streaming import Record
from localllm.server.times import format_utc
from registry.store import ModelSummary

VERSION_HEADER = "anthropic-version"
"""Every client of Anthropic's sends it, and nobody else: by it the two lists under /v1/models are told apart."""


def is_asked(request: Request) -> bool:
    """Whether a request comes from a client of Anthropic's."""
    return VERSION_HEADER in request.headers


def page(models: list[ModelSummary]) -> Record:
    """All models, as the one page there is."""
    data = [record(model) for model in models]
    ids = [item["id"] for item in data]
    return {"data": data, "has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}


def record(model: ModelSummary) -> Record:
    """One model."""
    name = model.name.short
    return {"type": "model", "id": name, "display_name": name, "created_at": format_utc(model.modified_ns)}

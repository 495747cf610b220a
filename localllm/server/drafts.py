"""The draft model of a request: by name from the store, or the one that its model came with; it loads nothing.

Whether it fits is for the scheduler to see, by the vocabularies of both.
"""

from typing import Any

from localllm.messages import ModelSpec
from localllm.server import lookup
from localllm.server.daemon import Daemon
from localllm.server.errors import APIError
from registry.manifest import digest_of_parts
from registry.store import ResolvedModel


async def draft_of(daemon: Daemon, model: ResolvedModel, options: dict[str, Any]) -> ModelSpec | None:
    """The draft model that a request with these (resolved) options wants.

    Raises: APIError with status 404, InvalidNameError.
    """
    if options["draft_num_predict"] == 0:
        return None
    if name := options["draft_model"].strip():
        return lookup.model_spec(await _named(daemon, model, name))
    if model.draft_paths:
        paths = [str(path) for path in model.draft_paths]
        digest = digest_of_parts([path.name.partition("-")[2] for path in model.draft_paths])
        return ModelSpec(f"the draft of {model.name.short}", digest, paths, digest)
    return None


async def _named(daemon: Daemon, model: ResolvedModel, name: str) -> ResolvedModel:
    try:
        return await lookup.resolve(daemon, lookup.model_name(name), name)
    except APIError as error:
        text = f"draft model '{name}' of '{model.name.short}': {error}"
        raise APIError(error.status, text, hint=error.hint) from error

"""From the model name in a request to what the store has, and from there to what a runner needs.

It knows no endpoint; the texts that differ between endpoints are theirs.
"""

import asyncio
from dataclasses import replace
from typing import Any

from localllm.messages import ModelSpec
from localllm.server.cloud import REMOTE_MODEL
from localllm.server.daemon import Daemon
from localllm.server.errors import APIError
from registry.errors import BrokenModelError, ModelNotFoundError, SourceError
from registry.manifest import ModelConfig
from registry.names import DEFAULT_TAG, Name, parse_name
from registry.pull import local_name
from registry.store import ResolvedModel


def model_name(text: str) -> Name:
    """The name a client means; a source's reference (`pip:…`) means the name that its model is stored under.

    After a whole name, `:local` says that the model is here, which it always is, and `:cloud` that it is not.
    Raises: InvalidNameError; APIError with status 400 for both at once, 403 for the cloud's.
    """
    *_, last = text.strip().lower().rpartition("/")
    _, *tags = last.split(":")
    if "local" in tags and any(map(_is_cloud, tags)):
        raise APIError(400, f'use either :local or :cloud, not both: "{text}"')
    if len(tags) > 1 and tags[-1] == "cloud":
        raise _elsewhere()
    if len(tags) > 1 and tags[-1] == "local":
        text = text.strip()[: -len(":local")]
    try:
        return local_name(text)
    except SourceError:
        return parse_name(text)


async def resolve(daemon: Daemon, name: Name, shown: str) -> ResolvedModel:
    """The model of that name; `shown` is how the client wrote it. A tag `local` that no model has means `latest`.

    Raises: APIError with status 404, or 403 for a tag of the cloud's.
    """
    try:
        return await asyncio.to_thread(daemon.store.resolve, name)
    except ModelNotFoundError:
        if name.tag.lower() == "local":
            return await resolve(daemon, replace(name, tag=DEFAULT_TAG), shown)
        if _is_cloud(name.tag.lower()):
            raise _elsewhere() from None
        raise APIError(404, f"model '{shown}' not found", hint=f"localllm pull {shown}") from None
    except BrokenModelError as error:
        text = f'model "{shown}" not found, try pulling it first'
        raise APIError(404, text, hint=str(error)) from error


def _elsewhere() -> APIError:
    return APIError(403, REMOTE_MODEL, hint="only models on this machine can be run")


def _is_cloud(tag: str) -> bool:
    return tag == "cloud" or tag.endswith("-cloud")


def full_name(name: Name) -> str:
    """The complete name without a scheme, as in `registry.ollama.ai/library/m:latest`."""
    return "/".join(name.parts[:3]) + f":{name.tag}"


def model_spec(model: ResolvedModel) -> ModelSpec:
    """The part of a model that its runner is told."""
    return ModelSpec(
        name=model.name.short,
        digest=model.digest,
        model_paths=[str(path) for path in model.model_paths],
        model_digest=model.model_digest,
        template=model.template,
        system=model.system,
        params=dict(model.params),
        messages=list(model.messages),
        adapters=[
            {"path": str(path), "digest": path.name.removeprefix("sha256-"), "scale": 1.0}
            for path in model.adapter_paths
        ],
    )


def details(config: ModelConfig) -> dict[str, Any]:
    """The `details` object of a model: what its config blob says."""
    return {
        "parent_model": "",
        "format": config.model_format,
        "family": config.model_family,
        "families": list(config.model_families) or None,
        "parameter_size": config.model_type,
        "quantization_level": config.file_type,
    }

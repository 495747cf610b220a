"""What a model can do, told from its GGUF's metadata and its templates before it is loaded.

It knows nothing of how prompts are rendered: which template counts, and what that supports, is the runner's code.
"""

import asyncio
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localllm import env
from localllm.gguf.header import Header
from registry.names import Name
from registry.store import ResolvedModel, Store

if TYPE_CHECKING:
    from localllm.runner.templates import Templates

logger = logging.getLogger(__name__)

# Either name of each of the three tokens around a hole.
_INSERT_TOKENS = (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle"))
_CACHE_SIZE = 256


async def capabilities_of(model: ResolvedModel) -> list[str]:
    """Some of `completion`, `tools`, `insert`, `embedding`, `thinking`, in that order.

    Images cannot be read by the runner, so `vision` is never among them. `insert` may be missing where only the texts
    of the vocabulary tell of it: the loaded runner knows. Raises: GGUFError.
    """
    return await asyncio.to_thread(_of_model, model)


def listed_capabilities(store: Store, name: Name) -> list[str] | None:
    """The same for a list of models, None where a model cannot tell: it must not take the others with it. Blocks."""
    try:
        return _of_model(store.resolve(name)) or None
    except Exception as error:  # a damaged file may say anything
        logger.debug("the capabilities of %s are not known: %s", name, type(error).__name__)
        return None


def _of_model(model: ResolvedModel) -> list[str]:
    if not model.model_paths:
        return []
    return list(_capabilities(model.model_paths[0], model.template, env.go_template()))


@functools.lru_cache(_CACHE_SIZE)
def _capabilities(path: Path, template: str | None, prefers_go: bool | None) -> tuple[str, ...]:
    # The path is named by its content's digest, so the answer does not change.
    with Header(path) as header:
        return tuple(find_capabilities(header.metadata, template, prefers_go))


def find_capabilities(metadata: Mapping[str, Any], template: str | None, prefers_go: bool | None = None) -> list[str]:
    """The capabilities that a GGUF's metadata and the model's Go template (None: there is none) tell of."""
    if f"{metadata.get('general.architecture', '')}.pooling_type" in metadata:
        return ["embedding"]
    templates = templates_of(metadata, template, prefers_go)
    inserts = templates.for_insert(None) is not None or _has_insert_tokens(metadata)
    supported = {*templates.capabilities, *(("insert",) if inserts else ())}
    return ["completion", *(name for name in ("tools", "insert", "thinking") if name in supported)]


def templates_of(metadata: Mapping[str, Any], template: str | None, prefers_go: bool | None) -> "Templates":
    """The templates of a model, of which one is in use."""
    # Jinja is loaded when the first model is looked at, not when the daemon starts.
    from localllm.runner.templates import Templates

    return Templates(metadata, template, "", "", prefers_go=prefers_go)


def _has_insert_tokens(metadata: Mapping[str, Any]) -> bool:
    return all(any(f"tokenizer.ggml.{name}_token_id" in metadata for name in names) for names in _INSERT_TOKENS)

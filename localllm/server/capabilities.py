"""What a model can do, told from its GGUF's metadata and its templates before it is loaded.

It knows nothing of how prompts are rendered: which template counts, and what that supports, is the runner's code.
"""

import asyncio
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localllm.gguf.header import Header
from registry.store import ResolvedModel

# Either name of each of the three tokens around a hole.
_INSERT_TOKENS = (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle"))
_CACHE_SIZE = 256


async def capabilities_of(model: ResolvedModel) -> list[str]:
    """Some of `completion`, `tools`, `insert`, `embedding`, `thinking`, in that order.

    Images cannot be read by the runner, so `vision` is never among them. `insert` may be missing where only the texts
    of the vocabulary tell of it: the loaded runner knows. Raises: GGUFError.
    """
    if not model.model_paths:
        return []
    return list(await asyncio.to_thread(_capabilities, model.model_paths[0], model.template))


@functools.lru_cache(_CACHE_SIZE)
def _capabilities(path: Path, template: str | None) -> tuple[str, ...]:
    # The path is named by its content's digest, so the answer does not change.
    with Header(path) as header:
        return tuple(find_capabilities(header.metadata, template))


def find_capabilities(metadata: Mapping[str, Any], template: str | None) -> list[str]:
    """The capabilities that a GGUF's metadata and the model's Go template (None: there is none) tell of."""
    # Jinja is loaded when the first model is looked at, not when the daemon starts.
    from localllm.runner.templates import Templates

    if f"{metadata.get('general.architecture', '')}.pooling_type" in metadata:
        return ["embedding"]
    templates = Templates(metadata, template, "", "")
    inserts = templates.for_insert(None) is not None or _has_insert_tokens(metadata)
    supported = {*templates.capabilities, *(("insert",) if inserts else ())}
    return ["completion", *(name for name in ("tools", "insert", "thinking") if name in supported)]


def _has_insert_tokens(metadata: Mapping[str, Any]) -> bool:
    return all(any(f"tokenizer.ggml.{name}_token_id" in metadata for name in names) for names in _INSERT_TOKENS)

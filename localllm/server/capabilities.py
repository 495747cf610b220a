"""What a model can do, told from its GGUF's metadata and its templates before it is loaded.

It knows nothing of how prompts are rendered. Where the store has a Go template for the model, that one counts,
else the GGUF's own Jinja template.
"""

import asyncio
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localllm.gguf.header import Header
from registry.store import ResolvedModel

THINKING_FAMILIES = ("gptoss", "gpt-oss")
_CACHE_SIZE = 256


async def capabilities_of(model: ResolvedModel) -> list[str]:
    """Some of `completion`, `tools`, `insert`, `embedding`, `thinking`, in that order.

    Images cannot be read by this runner, so `vision` is never among them. Raises: GGUFError.
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
    arch = str(metadata.get("general.architecture", ""))
    if f"{arch}.pooling_type" in metadata:
        return ["embedding"]
    found = ["completion"]
    if template is not None:
        tools, thinking = _go_uses("Tools", template), _go_uses("Thinking", template)
    else:
        jinja = metadata.get("tokenizer.chat_template")
        jinja = jinja if isinstance(jinja, str) else ""
        tools, thinking = "tools" in jinja or "tool_call" in jinja, _jinja_thinks(jinja)
    if tools:
        found.append("tools")
    if template is not None and _go_uses("Suffix", template):
        found.append("insert")
    if thinking or arch in THINKING_FAMILIES:
        found.append("thinking")
    return found


def _go_uses(variable: str, template: str) -> bool:
    return re.search(rf"\{{\{{[^}}]*\.{variable}\b", template) is not None


def _jinja_thinks(source: str) -> bool:
    splits = "content.split('</think>')" in source and "reasoning_content" not in source
    return ("<think>" in source and "</think>" in source) or splits

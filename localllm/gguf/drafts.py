"""Whether one model can draft for another, as their metadata say; standard library only. It loads neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localllm.errors import OptionError

# Vocabularies are padded to sizes that kernels like; so many tokens one may have that the other lacks.
MAX_PADDING = 256


def check_draft(name: str, metadata: Mapping[str, Any], draft_name: str, draft_metadata: Mapping[str, Any]) -> None:
    """Raises: OptionError: the draft model has another vocabulary than the model, or is no model that drafts."""
    if problem := _difference(metadata, draft_metadata):
        raise OptionError(
            f'draft model "{draft_name}" does not fit "{name}": {problem}',
            hint="take a smaller model of the same family, or set draft_num_predict to 0",
        )


def _difference(metadata: Mapping[str, Any], draft_metadata: Mapping[str, Any]) -> str:
    """In what the vocabularies differ; empty where tokens of the one are those of the other."""
    kind, draft_kind = (found.get("tokenizer.ggml.model") for found in (metadata, draft_metadata))
    if kind != draft_kind:
        return f"its tokenizer is {draft_kind!r}, not {kind!r}"
    if f"{draft_metadata.get('general.architecture')}.pooling_type" in draft_metadata:
        return "it makes vectors, not text"
    tokens, draft_tokens = (list(found.get("tokenizer.ggml.tokens") or []) for found in (metadata, draft_metadata))
    if abs(len(tokens) - len(draft_tokens)) > MAX_PADDING:
        return f"it has {len(draft_tokens)} tokens, not {len(tokens)}"
    for i, (token, draft_token) in enumerate(zip(tokens, draft_tokens, strict=False)):
        if token != draft_token:
            return f"its token {i} is {draft_token!r}, not {token!r}"
    return ""

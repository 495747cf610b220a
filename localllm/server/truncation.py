"""How an answer says that the model did not read all it was sent, in a field and in a header; it knows no endpoint."""

from typing import Any

HEADER = "X-Localllm-Truncated"


def truncated_field(truncated: dict[str, Any] | None) -> dict[str, Any]:
    """The field of a body; none where nothing was lost."""
    return {"truncated": truncated} if truncated else {}


def header_of(truncated: dict[str, Any] | None) -> dict[str, str]:
    """The header for a `truncated` field, such as `messages=3, tokens=512`; none where nothing was lost."""
    told = ", ".join(f"{name}={n}" for name, n in (truncated or {}).items() if n)
    return {HEADER: told} if told else {}

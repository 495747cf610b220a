"""JSON inside a model's text: where an object ends, and its value; it knows nothing of tool calls."""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]"]', re.DOTALL)
_MAX_DEPTH = 200


def span_end(text: str, start: int) -> int | None:
    """Where the object or list that begins at `start` ends (one past it); None if it does not end yet."""
    depth = 0
    for match in _TOKEN.finditer(text, start):
        token = match[0]
        if token in "{[":
            depth += 1
        elif token in "}]":
            depth -= 1
            if depth == 0:
                return match.end()
        elif token == '"':
            return None  # a string without an end
    return None


def parsed(text: str) -> Any:
    """The value, with raw line breaks allowed in strings, as models write them; None where it is no JSON."""
    try:
        return well_formed(json.loads(text, strict=False, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def well_formed(value: Any, depth: int = 0) -> Any:
    """The value with unpaired surrogates replaced, which can be sent nowhere. Raises: ValueError if too deep."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        return value if value.isprintable() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [well_formed(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {well_formed(key): well_formed(item, depth + 1) for key, item in value.items()}
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")

"""JSON inside a model's text: where an object ends, and its value; it knows nothing of tool calls."""

from __future__ import annotations

import json
import re
from typing import Any

_OUTSIDE, _INSIDE = re.compile(r'[{}\[\]"]'), re.compile(r'["\\]')
_MAX_DEPTH = 200


class Spans:
    """Finds the end of an object or list in text that grows: of what it has seen before nothing is read again."""

    def __init__(self) -> None:
        self._text = ""
        self._start = -1
        self._at = self._depth = 0
        self._is_inside = False  # a string

    def end(self, text: str, start: int) -> int | None:
        """Where the object or list that begins at `start` ends (one past it); None if it does not end yet."""
        if start != self._start or not text.startswith(self._text):
            self._start = self._at = start
            self._depth, self._is_inside = 0, False
        self._text = text
        while match := (_INSIDE if self._is_inside else _OUTSIDE).search(text, self._at):
            token, at = match[0], match.end()
            if token == "\\":
                if at == len(text):
                    self._at = match.start()
                    return None
                at += 1
            elif token == '"':
                self._is_inside = not self._is_inside
            else:
                self._depth += 1 if token in "{[" else -1
            self._at = at
            if self._depth == 0 and not self._is_inside:
                self._start = -1  # whoever asks again asks about something else
                return at
        self._at = len(text)
        return None


def span_end(text: str, start: int) -> int | None:
    """Where the object or list that begins at `start` ends (one past it); None if it does not end."""
    return Spans().end(text, start)


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

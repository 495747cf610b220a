"""JSON as Go's encoder writes it; it knows nothing of templates.

Compact, keys of maps sorted, `<`, `>`, `&` and the separators U+2028 and U+2029 escaped.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

from localllm.chat.go.values import NIL, Alternatives, Record, TypedList, TypedMap

_ESCAPED = re.compile("[<>&\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_EXPONENT = re.compile(r"e([+-])0+(?=\d)")


def go_json(value: Any) -> str:
    """The JSON of a value; "" for what JSON cannot say (infinity), as Ollama's templates see it."""
    try:
        return _text(value)
    except ValueError:
        return ""


def _text(value: Any) -> str:
    if value is None or value is NIL:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Alternatives) and len(value) == 1:
        return _string(value[0])
    if isinstance(value, TypedList) and not value:
        return "null"  # Go's slice that nobody filled
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        is_sorted = not isinstance(value, TypedMap) or value.is_sorted
        return _object((key, value[key]) for key in (sorted(value) if is_sorted else value))
    if isinstance(value, Record):
        shown = ((name, value.values[field]) for field, name, omits in value.tags if not omits or value.values[field])
        return _object(shown)
    if isinstance(value, int):
        return str(value)
    raise ValueError(type(value).__name__)


def _object(items: Any) -> str:
    return "{" + ",".join(f"{_string(str(key))}:{_text(item)}" for key, item in items) + "}"


def _string(text: str) -> str:
    text = json.dumps(_SURROGATE.sub("\ufffd", text), ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _float(value: float) -> str:
    """Plain digits from 1e-6 up to 1e21, an exponent without leading zeros beyond."""
    if not math.isfinite(value):
        raise ValueError("no number of JSON")
    size = abs(value)
    if size != 0 and not 1e-6 <= size < 1e21:
        return _EXPONENT.sub(r"e\1", repr(value) if "e" in repr(value) else f"{value:e}")
    text = repr(value)
    if "e" in text:
        text = f"{Decimal(text):f}"
    return text.removesuffix(".0").removesuffix(".")

"""Calls of tools as the text that a model would write; it knows nothing of templates but marks in their source."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Call = dict[str, Any]
WriteCalls = Callable[[list[Call]], str]


def writer_for(source: str) -> WriteCalls:
    """How the family of a template's source writes calls; between `<tool_call>` tags where nothing tells."""
    return next((write for marks, write in _FAMILIES if any(mark in source for mark in marks)), _tagged)


def _tagged(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_json(_named(call))}\n</tool_call>" for call in calls)


def _listed(calls: list[Call]) -> str:
    return "<|tool_call|>" + _json([_named(call) for call in calls])


def _pythonic(calls: list[Call]) -> str:
    return f"<|tool_call_start|>[{', '.join(map(_expression, calls))}]<|tool_call_end|>"


def _expression(call: Call) -> str:
    arguments = call["function"]["arguments"]
    named = arguments.items() if isinstance(arguments, dict) else ()
    return f"{call['function'].get('name')}({', '.join(f'{name}={_literal(value)}' for name, value in named)})"


def _literal(value: Any) -> str:
    return _json(value) if isinstance(value, str) else repr(value)


def _named(call: Call) -> Call:
    return {key: call["function"].get(key) for key in ("name", "arguments")}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# LFM2 and Granite 3: their templates list tools, but leave it to the caller to write calls into the content.
_FAMILIES: tuple[tuple[tuple[str, ...], WriteCalls], ...] = (
    (("<|tool_list_start|>", "List of tools: ["), _pythonic),
    (("<|tool_call|>",), _listed),
)

"""The arguments of a tool whose calls have them one by one: strings as they are, other values as JSON.

It knows nothing of the texts around them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localllm.chat.tools.declared import kinds_of
from localllm.errors import RequestError
from localllm.grammar.expressions import Grammar, Literal, choice
from localllm.runner.constraints.wanted import Wanted

_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "$comment"))
_ROOT_KEYS = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"))
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True)
class Argument:
    """One argument; without a `grammar` it is any text."""

    key: str
    is_required: bool
    grammar: Grammar | None


def element_arguments(
    schema: dict[str, Any], compiled: Callable[[dict[str, Any]], Wanted]
) -> tuple[tuple[Argument, ...], tuple[str, ...]]:
    """The arguments that a schema of an object declares, in order, and warnings. `compiled` is for values of JSON.

    Raises:
        RequestError: the schema says more than what the properties of an object are, or more of a text than which
            texts it may be.
    """
    if other := sorted(schema.keys() - _ROOT_KEYS - _ANNOTATIONS):
        raise RequestError(f"#/{other[0]}: cannot be enforced where a model writes arguments one by one")
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise RequestError("#/properties: expected an object, and an array of names in required")
    if missing := [name for name in required if name not in properties]:
        raise RequestError(f"#/required: {json.dumps(missing[0])} is not among the properties")
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    arguments: list[Argument] = []
    warnings: list[str] = []
    for key, value in properties.items():
        grammar: Grammar | None
        if "string" in kinds_of(value):
            grammar = _text(key, value)
        else:
            wanted = compiled({**value, **definitions} if isinstance(value, dict) else {})
            grammar, warnings = wanted.grammar, [*warnings, *wanted.warnings]
        arguments.append(Argument(key, key in required, grammar))
    return tuple(arguments), tuple(warnings)


def _text(key: str, schema: dict[str, Any]) -> Grammar | None:
    """A text as it stands, None for any."""
    texts = schema.get("enum", [schema["const"]] if "const" in schema else None)
    known = _ANNOTATIONS | {"type", "enum", "const"}
    is_plain = schema.get("type", "string") == "string" and not schema.keys() - known
    if not is_plain or not (texts is None or all(isinstance(text, str) for text in texts)):
        other = min(schema.keys() - known, default="type")
        where = f"#/properties/{key}/{other}"
        raise RequestError(f"{where}: cannot be enforced where a model writes texts as they are")
    return None if texts is None else Grammar({"root": choice([Literal(text.encode()) for text in texts])})

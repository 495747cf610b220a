"""JSON Schemas as grammars; what is done with a grammar it does not know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from localllm.grammar.errors import SchemaError, TooComplexError
from localllm.grammar.expressions import Grammar
from localllm.grammar.json_text import Whitespace
from localllm.grammar.schema.emit import Order, emit
from localllm.grammar.schema.normalize import normalize

__all__ = ["CompiledSchema", "Order", "Whitespace", "compile_schema"]

LENIENT_KEY = "x-lenient"  # at a schema's root


@dataclass(frozen=True, eq=False)
class CompiledSchema:
    """The grammar of a schema's values, and what of the schema it does not enforce, because the schema permits that."""

    grammar: Grammar
    warnings: tuple[str, ...]


def compile_schema(
    schema: dict[str, Any] | bool | str, *, whitespace: Whitespace = "compact", order: Order = "declared"
) -> CompiledSchema:
    """The grammar of the JSON texts of the values that a schema permits.

    schema: a JSON Schema, or its JSON text. With `"x-lenient": true` at its root, what cannot be enforced is left out
    and told in `warnings`; else it is an error. whitespace: "compact" (none) or "flexible" (a space, or a line feed
    and at most 20 blanks, where JSON permits blanks within a value). order: of an object's properties, "declared" or,
    for at most `emit_objects.MAX_FREE_ORDER` properties, "any".

    Raises:
        SchemaError: no JSON, or no JSON Schema.
        UnsupportedSchemaError: a keyword that cannot be enforced.
        UnsatisfiableSchemaError: no value is valid.
        TooComplexError: more shapes or states than the limits allow.
    """
    if isinstance(schema, str):
        schema = _parsed(schema)
    is_lenient = schema.get(LENIENT_KEY, False) if isinstance(schema, dict) else False
    if not isinstance(is_lenient, bool):
        raise SchemaError(f"expected true or false, not {json.dumps(is_lenient)}", path=f"#/{LENIENT_KEY}")
    shapes = normalize(schema, is_lenient=is_lenient)
    return CompiledSchema(emit(shapes, whitespace=whitespace, order=order), shapes.warnings)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise SchemaError(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from error
    except RecursionError as error:
        raise TooComplexError("the schema's JSON is nested too deeply") from error


def _refuse_constant(name: str) -> NoReturn:
    raise SchemaError(f"not JSON: {name} is no number")

"""The JSON Schema of what binds a request (localllm/server/binding.py); it knows no endpoint.

Names match without regard to case and null is an absent value, which a schema says with a second type.
"""

from functools import singledispatch
from typing import Any

from localllm.server.binding import Bool, Image, Int, Judged, List, Map, String, Struct, Type

Schema = dict[str, Any]


@singledispatch
def schema_of(kind: Type) -> Schema:
    """The schema of a value that is not null. Kinds without one of their own may be anything."""
    return {}


@schema_of.register
def _(kind: String) -> Schema:
    return {"type": "string"}


@schema_of.register
def _(kind: Bool) -> Schema:
    return {"type": "boolean"}


@schema_of.register
def _(kind: Int) -> Schema:
    return {"type": "integer", "minimum": -(2**63) + 1, "maximum": 2**63 - 1}


@schema_of.register
def _(kind: Image) -> Schema:
    return {"type": "string", "contentEncoding": "base64"}


@schema_of.register
def _(kind: Map) -> Schema:
    return {"type": "object"}


@schema_of.register
def _(kind: Judged) -> Schema:
    return dict(kind.shape)


@schema_of.register
def _(kind: List) -> Schema:
    return {"type": "array", "items": or_null(kind.of)}


@schema_of.register
def _(kind: Struct) -> Schema:
    return {"type": "object", "properties": {name: _field(field) for name, field in kind.fields.items()}}


def or_null(kind: Type) -> Schema:
    """The schema of a value that may be null."""
    schema = schema_of(kind)
    if "type" not in schema:
        return schema
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*types, "null"]}


def _field(kind: Type) -> Schema:
    default = kind.default
    return or_null(kind) if default is None or default == "" else {**or_null(kind), "default": default}

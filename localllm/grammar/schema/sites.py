"""A schema being read: where it stands, which of its keywords count, and how its parts become shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localllm.grammar.errors import UnsupportedSchemaError
from localllm.grammar.schema.documents import Place
from localllm.grammar.schema.shapes import ShapeId
from localllm.grammar.schema.table import Table


@dataclass(eq=False, slots=True)
class Site:
    """`present` are the keywords that the schema has and its draft knows. `child(schema, *steps)` is the shape of a
    part that stands at `steps`, `in_place` that of one that speaks of the same value. `leave_out` is told of what
    cannot be enforced, and raises it unless the schema asked for leniency. `is_tracking`: somebody asks which
    properties and items were evaluated."""

    table: Table
    place: Place
    present: frozenset[str]
    child: Callable[..., ShapeId]
    in_place: Callable[..., ShapeId]
    leave_out: Callable[[UnsupportedSchemaError], None]
    is_tracking: bool = False

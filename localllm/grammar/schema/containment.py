"""Alternatives that others contain, which may be left out; whether one contains another may be overlooked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localllm.grammar.errors import UnsupportedSchemaError
from localllm.grammar.schema import ranges
from localllm.grammar.schema.languages import Languages
from localllm.grammar.schema.nodes import ANY, ANY_STRING, NEVER, Node, ObjectNode
from localllm.grammar.schema.shapes import ShapeId

# Of fewer alternatives it is not worth while, of more it takes too long.
FEWEST, MOST = 6, 64


class Nodes(Protocol):
    """The part of a table that comparing needs."""

    languages: Languages

    def spend(self, amount: int) -> None: ...

    def node(self, shape: ShapeId) -> Node: ...

    def parts(self, shape: ShapeId) -> tuple[ShapeId, ...]: ...


def without_contained(table: Nodes, objects: Sequence[ObjectNode]) -> Sequence[ObjectNode]:
    """The alternatives without those that another one contains."""
    if not FEWEST <= len(objects) <= MOST:
        return objects
    table.spend(len(objects) ** 2 >> 3)
    known: dict[tuple[ShapeId, ShapeId], bool] = {}
    kept: list[ObjectNode] = []
    for index, found in enumerate(objects):
        if any(_holds(table, other, found, known) for other in kept):
            continue
        if not any(_holds(table, other, found, known) for other in objects[index + 1 :]):
            kept.append(found)
    return kept


def _holds(table: Nodes, a: ObjectNode, b: ObjectNode, known: dict[tuple[ShapeId, ShapeId], bool]) -> bool:
    """Whether every object of b is of a."""
    if a.required - b.required or a.evaluated is not b.evaluated or set(a.some) - set(b.some):
        return False
    if a.least > max(b.least, len(b.required)):
        return False
    if a.most is not None and (b.most is None or b.most > a.most):
        return False
    names = (*a.properties, *(name for name in b.properties if name not in a.properties))
    return all(_is_part(table, b.value(name), a.value(name), known) for name in names) and (
        _are_parts(table, b, a, known)
    )


def _are_parts(table: Nodes, b: ObjectNode, a: ObjectNode, known: dict[tuple[ShapeId, ShapeId], bool]) -> bool:
    if len(a.families) == 1 and a.families[0][0] is ANY_STRING:
        return all(_is_part(table, shape, a.families[0][1], known) for _, shape in b.families)
    return len(a.families) == len(b.families) and all(
        ours is theirs and _is_part(table, shape, other, known)
        for (ours, shape), (theirs, other) in zip(b.families, a.families, strict=True)
    )


def _is_part(table: Nodes, small: ShapeId, large: ShapeId, known: dict[tuple[ShapeId, ShapeId], bool]) -> bool:
    if small in (large, NEVER) or large == ANY:
        return True
    found = known.get((small, large))
    if found is None:
        found = set(table.parts(large)) <= set(table.parts(small)) or _is_scalar_part(table, small, large)
        known[small, large] = found
    return found


def _is_scalar_part(table: Nodes, small: ShapeId, large: ShapeId) -> bool:
    try:
        a, b = table.node(small), table.node(large)
    except UnsupportedSchemaError:
        return False
    if a.arrays or a.objects or a.has_null > b.has_null or a.booleans - b.booleans:
        return False
    if a.numbers and ranges.intersect(a.numbers, b.numbers) != a.numbers:
        return False
    return a.strings is None or (b.strings is not None and table.languages.both(a.strings, b.strings) == a.strings)

"""JSON Schema to the normal form of `shapes`: exactly the values that the schema permits, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from localllm.grammar.errors import TooComplexError, UnsatisfiableSchemaError
from localllm.grammar.schema.documents import Document
from localllm.grammar.schema.lowering import lower
from localllm.grammar.schema.nodes import ANY
from localllm.grammar.schema.pruning import without_empty
from localllm.grammar.schema.reading import Reader
from localllm.grammar.schema.shapes import ArrayShape, ObjectShape, Shape, ShapeId, Shapes
from localllm.grammar.schema.table import Table


def normalize(schema: object, *, is_lenient: bool = False) -> Shapes:
    """The normal form of a schema: an object or a boolean, as `json` reads it (numbers may be Decimal or Fraction too).

    The draft is that of `$schema`; without one it is 2020-12, and what older drafts wrote differently is understood.
    `is_lenient`: what cannot be enforced is left out, with a warning.

    Raises:
        SchemaError: the schema is malformed.
        UnsupportedSchemaError: it is well formed, but holds what cannot be enforced exactly.
        UnsatisfiableSchemaError: no value is valid.
        TooComplexError: it needs more shapes or alternatives than the limits allow.
    """
    try:
        table = Table()
        document = Document(schema)
        reader = Reader(document, table, is_lenient=is_lenient)
        root = reader.shape(document.root)
        shapes = _lowered(table, root, reader)
    except RecursionError:
        raise TooComplexError("a schema is nested too deeply") from None
    found = without_empty(shapes)
    if root not in found:
        raise UnsatisfiableSchemaError("no value is valid")
    return _numbered(found, root, tuple(reader.warnings))


def _lowered(table: Table, root: ShapeId, reader: Reader) -> dict[ShapeId, Shape]:
    """All shapes that can be reached from the root."""
    found: dict[ShapeId, Shape] = {}
    waiting = [root]
    while waiting:
        shape = waiting.pop()
        if shape in found:
            continue
        found[shape] = lower(table, table.node(shape), reader.leave_out)
        waiting += children(found[shape])
    return found


def children(shape: Shape) -> Iterator[ShapeId]:
    """The shapes that a shape refers to."""
    for array in shape.arrays:
        yield from array.prefix
        yield from (part for part in (array.rest, array.contains, array.others) if part is not None)
    for found in shape.objects:
        yield from found.properties.values()
        yield from (part for _, part in found.families)


def _numbered(found: dict[ShapeId, Shape], root: ShapeId, warnings: tuple[str, ...]) -> Shapes:
    """The shapes in a table, in the order in which they are met from the root."""
    order = {root: 0}
    waiting = [root]
    for shape in waiting:
        for child in children(found[shape]):
            if child not in order:
                order[child] = len(order)
                waiting.append(child)
    renamed = order.__getitem__
    table = [_renamed(found[shape], renamed) for shape in order]
    return Shapes(table, 0, order.get(ANY), warnings)


def _renamed(shape: Shape, name: Callable[[ShapeId], ShapeId]) -> Shape:
    if not shape.arrays and not shape.objects:
        return shape
    return replace(
        shape,
        arrays=tuple(_renamed_array(array, name) for array in shape.arrays),
        objects=tuple(_renamed_object(found, name) for found in shape.objects),
    )


def _renamed_array(array: ArrayShape, name: Callable[[ShapeId], ShapeId]) -> ArrayShape:
    return replace(
        array,
        prefix=tuple(map(name, array.prefix)),
        rest=None if array.rest is None else name(array.rest),
        contains=None if array.contains is None else name(array.contains),
        others=None if array.others is None else name(array.others),
    )


def _renamed_object(found: ObjectShape, name: Callable[[ShapeId], ShapeId]) -> ObjectShape:
    return replace(
        found,
        properties={key: name(shape) for key, shape in found.properties.items()},
        families=tuple((language, name(shape)) for language, shape in found.families),
    )

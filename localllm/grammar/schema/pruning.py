"""Shapes that no value is of, found together: those of a recursion without an end are among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from localllm.grammar.regular import Language
from localllm.grammar.schema.shapes import ArrayShape, ObjectShape, Shape, ShapeId


def without_empty(shapes: dict[ShapeId, Shape]) -> dict[ShapeId, Shape]:
    """The shapes that some value is of, without alternatives, properties and items that no value is of."""
    inhabited: set[ShapeId] = set()
    grows = True
    while grows:
        grows = False
        for name, shape in reversed(shapes.items()):
            if name not in inhabited and _is_inhabited(shape, inhabited):
                inhabited.add(name)
                grows = True
    if len(inhabited) == len(shapes):
        return {name: _pruned(shape, inhabited) if _is_tight(shape) else shape for name, shape in shapes.items()}
    return {name: _pruned(shape, inhabited) for name, shape in shapes.items() if name in inhabited}


def _is_tight(shape: Shape) -> bool:
    """Whether counts, which may contradict the rest, are part of it."""
    return any(found.least > len(found.required) for found in shape.objects) or any(
        array.contains is not None or array.is_unique for array in shape.arrays
    )


def _is_inhabited(shape: Shape, inhabited: set[ShapeId]) -> bool:
    return bool(
        shape.has_null
        or shape.booleans
        or shape.numbers
        or shape.strings is not None
        or any(_pruned_array(array, inhabited) is not None for array in shape.arrays)
        or any(_pruned_object(found, inhabited) is not None for found in shape.objects)
    )


def _pruned(shape: Shape, inhabited: set[ShapeId]) -> Shape:
    if not shape.arrays and not shape.objects:
        return shape
    arrays = (_pruned_array(array, inhabited) for array in shape.arrays)
    objects = (_pruned_object(found, inhabited) for found in shape.objects)
    return replace(
        shape,
        arrays=tuple(array for array in arrays if array is not None),
        objects=tuple(found for found in objects if found is not None),
    )


def _pruned_array(array: ArrayShape, inhabited: set[ShapeId]) -> ArrayShape | None:
    """The array without shapes that have no value; None if it has none itself."""
    prefix, rest, most = array.prefix, array.rest, array.most
    empty = next((index for index, shape in enumerate(prefix) if shape not in inhabited), None)
    if empty is not None:
        prefix, rest = prefix[:empty], None
    if rest is not None and rest not in inhabited:
        rest = None
    if rest is None:
        most = len(prefix) if most is None else min(most, len(prefix))
    if most is not None and array.least > most:
        return None
    contains, others = array.contains, array.others
    if contains is not None and (rest is None or contains not in inhabited):
        if array.contains_least:
            return None
        contains = None
        if array.contains_most is not None and rest is not None:
            rest = others
    if contains is not None and most is not None and most - len(prefix) < array.contains_least:
        return None
    if others is not None and others not in inhabited:
        others = None
    if contains is None:
        return ArrayShape(prefix, rest, array.least, most, is_unique=array.is_unique)
    return replace(array, prefix=prefix, rest=rest, most=most, contains=contains, others=others)


def _pruned_object(found: ObjectShape, inhabited: set[ShapeId]) -> ObjectShape | None:
    if not all(found.properties.get(name) in inhabited for name in found.required):
        return None
    properties = found.properties
    if not all(shape in inhabited for shape in properties.values()):
        properties = {name: shape for name, shape in properties.items() if shape in inhabited}
    families = tuple(family for family in found.families if family[1] in inhabited)
    if found.least > len(properties) and found.least > len(properties) + _n_names(families, found.least):
        return None
    if properties is found.properties and len(families) == len(found.families):
        return found
    return replace(found, properties=properties, families=families)


def _n_names(families: Iterable[tuple[Language, ShapeId]], enough: int) -> int:
    """How many names there are for other properties; at least `enough` if there are more."""
    total = 0
    for language, _ in families:
        names = language.strings(enough) if language.is_finite else None
        total += enough if names is None else len(names)
    return total

"""Whether a value is of a normal form, decided by plain recursion: what `normalize` is tested with."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from localllm.grammar.schema.shapes import ArrayShape, NumberRange, ObjectShape, Shapes


def accepts(shapes: Shapes, value: Any) -> bool:
    """Whether the value is valid."""
    return _is_of(shapes, shapes.root, value)


def _is_of(shapes: Shapes, index: int, value: Any) -> bool:
    shape = shapes.table[index]
    if value is None:
        return shape.has_null
    if isinstance(value, bool):
        return value in shape.booleans
    if isinstance(value, (int, float, Decimal)):
        return any(_is_in(numbers, value) for numbers in shape.numbers)
    if isinstance(value, str):
        return shape.strings is not None and shape.strings.contains(value)
    if isinstance(value, list):
        return any(_is_array(shapes, array, value) for array in shape.arrays)
    return any(_is_object(shapes, found, value) for found in shape.objects)


def _is_in(numbers: NumberRange, value: float) -> bool:
    exact = Fraction(repr(value)) if isinstance(value, float) and math.isfinite(value) else Fraction(value)
    if numbers.least is not None and (exact < numbers.least or (numbers.excludes_least and exact == numbers.least)):
        return False
    if numbers.most is not None and (exact > numbers.most or (numbers.excludes_most and exact == numbers.most)):
        return False
    if numbers.is_integer and exact.denominator != 1:
        return False
    if any((exact / step).denominator == 1 for step in numbers.not_multiples_of):
        return False
    return numbers.multiple_of is None or (exact / numbers.multiple_of).denominator == 1


def _is_array(shapes: Shapes, array: ArrayShape, value: list[Any]) -> bool:
    if len(value) < array.least or (array.most is not None and len(value) > array.most):
        return False
    n_prefix = len(array.prefix)
    if not all(_is_of(shapes, shape, item) for shape, item in zip(array.prefix, value, strict=False)):
        return False
    later = value[n_prefix:]
    if later and (array.rest is None or not all(_is_of(shapes, array.rest, item) for item in later)):
        return False
    if array.contains is not None:
        contained = [_is_of(shapes, array.contains, item) for item in later]
        if sum(contained) < array.contains_least:
            return False
        if array.contains_most is not None:
            if sum(contained) > array.contains_most:
                return False
            for item, is_one in zip(later, contained, strict=True):
                is_other = array.others is not None and _is_of(shapes, array.others, item)
                assert is_other is not is_one, "an item is either contained or one of the others"
    return not array.is_unique or len({_key(item) for item in value}) == len(value)


def _is_object(shapes: Shapes, found: ObjectShape, value: dict[str, Any]) -> bool:
    assert found.required <= found.properties.keys()
    if len(value) < found.least or (found.most is not None and len(value) > found.most):
        return False
    if not all(name in value for name in found.required):
        return False
    for name, item in value.items():
        if name in found.properties:
            if not _is_of(shapes, found.properties[name], item):
                return False
            continue
        families = [shape for language, shape in found.families if language.contains(name)]
        assert len(families) <= 1, "families are disjoint"
        if not families or not _is_of(shapes, families[0], item):
            return False
    return True


def _key(value: Any) -> object:
    if isinstance(value, list):
        return ("array", *map(_key, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, _key(item)) for name, item in value.items()))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ("number", Fraction(value))
    return (type(value).__name__, value)

"""Arrays whose items all differ, as far as that can be told beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from localllm.grammar.errors import UnsupportedSchemaError
from localllm.grammar.schema.nodes import NEVER, ArrayNode, Node
from localllm.grammar.schema.ranges import is_point
from localllm.grammar.schema.shapes import ShapeId
from localllm.grammar.schema.table import Table

# Different items among which each may come once: the rules have a state for each set of those that came.
MAX_DIFFERENT = 10
MAX_COMPARED = 24

LeaveOut = Callable[[UnsupportedSchemaError], None]


def settle_unique(table: Table, array: ArrayNode, leave_out: LeaveOut) -> ArrayNode:
    """The array without `unique` where its items differ anyway; else they are of few values, or it is refused."""
    if array.unique is None:
        return array
    if _differ_anyway(table, array):
        return replace(array, unique=None)
    values = _different(table, array)
    if values is not None and not array.contains:
        return array
    message = f"that items differ can only be enforced where they are of at most {MAX_DIFFERENT} values"
    leave_out(UnsupportedSchemaError(message, path=array.unique.path, keyword=array.unique.keyword))
    return replace(array, unique=None)


def settle_twins(table: Table, array: ArrayNode, leave_out: LeaveOut) -> ArrayNode | None:
    """The array if some two of its items may be equal, which is refused where it would have to be enforced."""
    if array.twins is None:
        return array
    if _differ_anyway(table, array):
        return None
    message = "that two items are equal cannot be enforced"
    leave_out(UnsupportedSchemaError(message, path=array.twins.path, keyword=array.twins.keyword))
    return replace(array, twins=None)


def _differ_anyway(table: Table, array: ArrayNode) -> bool:
    if array.most is not None and array.most <= 1:
        return True
    most = array.most
    if array.rest != NEVER and (most is None or most > MAX_COMPARED):
        return False
    n_items = len(array.prefix) if most is None else min(most, MAX_COMPARED + 1)
    if n_items > MAX_COMPARED:
        return False
    items = [array.item(index) for index in range(n_items)]
    return all(table.is_empty(table.both(item, other)) for index, item in enumerate(items) for other in items[:index])


def _different(table: Table, array: ArrayNode) -> int | None:
    """How many different items there may be; None for too many."""
    total = 0
    for shape in dict.fromkeys((*array.prefix, array.rest)):
        if shape != NEVER:
            n_values = count_values(table, shape)
            if n_values is None:
                return None
            total += n_values
    return total if total <= MAX_DIFFERENT else None


def count_values(table: Table, shape: ShapeId) -> int | None:
    """How many values are of a shape; None for more than MAX_DIFFERENT, or where arrays or objects are among them."""
    node: Node = table.node(shape)
    if node.arrays or node.objects or not all(is_point(part) for part in node.numbers):
        return None
    n_strings = 0
    if node.strings is not None:
        strings = node.strings.strings(MAX_DIFFERENT)
        if strings is None:
            return None
        n_strings = len(strings)
    total = node.has_null + len(node.booleans) + len(node.numbers) + n_strings
    return total if total <= MAX_DIFFERENT else None

"""Arrays whose items all differ, as far as that can be told beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace

from localllm.grammar.errors import UnsupportedSchemaError
from localllm.grammar.schema.nodes import NEVER, ArrayNode, Node
from localllm.grammar.schema.ranges import listed
from localllm.grammar.schema.table import Table

# The rules have a state for each set of items that came already.
MAX_SETS = 1024
MAX_VALUES = 64
MAX_COMPARED = 24

LeaveOut = Callable[[UnsupportedSchemaError], None]


def settle_unique(table: Table, array: ArrayNode, leave_out: LeaveOut) -> ArrayNode | None:
    """The array without `unique` where its items differ anyway; else they are of few values, or it is refused.

    None: there are fewer values than items.
    """
    if array.unique is None:
        return array
    if _differ_anyway(table, array):
        return replace(array, unique=None)
    values = _values_of_items(table, array)
    if values is not None and len(values) < array.least:
        return None
    if values is not None and not array.contains and _has_few_sets(len(values), array.most):
        return array
    message = "that items differ can only be enforced where they are of few values"
    leave_out(UnsupportedSchemaError(message, path=array.unique.path, keyword=array.unique.keyword))
    return replace(array, unique=None)


def settle_twins(table: Table, array: ArrayNode | None, leave_out: LeaveOut) -> ArrayNode | None:
    """The array if some two of its items may be equal, which is refused where it would have to be enforced."""
    if array is None or array.twins is None:
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


def _has_few_sets(n_values: int, most: int | None) -> bool:
    """Whether rules could tell apart which of the values came already."""
    longest = n_values if most is None else min(most, n_values)
    return sum(math.comb(n_values, n) for n in range(longest + 1)) <= MAX_SETS


def _values_of_items(table: Table, array: ArrayNode) -> set[Hashable] | None:
    """What tells the items apart that there may be; None for more than MAX_VALUES of a shape."""
    different: set[Hashable] = set()
    for shape in dict.fromkeys((*array.prefix, array.rest)):
        if shape != NEVER:
            values = _values(table.node(shape))
            if values is None:
                return None
            different |= values
    return different


def _values(node: Node) -> set[Hashable] | None:
    """What tells the values of a node apart; None for more than MAX_VALUES, or where there are arrays or objects."""
    if node.arrays or node.objects:
        return None
    found: set[Hashable] = {("boolean", value) for value in node.booleans}
    if node.has_null:
        found.add("null")
    if node.strings is not None:
        strings = node.strings.strings(MAX_VALUES)
        if strings is None:
            return None
        found.update(strings)
    for part in node.numbers:
        numbers = listed(part, MAX_VALUES)
        if numbers is None:
            return None
        found.update(("number", number) for number in numbers)
    return found if len(found) <= MAX_VALUES else None

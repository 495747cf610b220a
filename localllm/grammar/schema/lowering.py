"""From nodes to shapes: what rules cannot say is rewritten as alternatives that they can, or refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from localllm.grammar.errors import TooComplexError, UnsupportedSchemaError
from localllm.grammar.regular import Language
from localllm.grammar.schema.combining import MAX_ALTERNATIVES, candidates, intersect_objects, tidy_array
from localllm.grammar.schema.nodes import NEVER, ArrayNode, Contains, Node, ObjectNode, Some
from localllm.grammar.schema.shapes import ArrayShape, ObjectShape, Shape, ShapeId
from localllm.grammar.schema.table import Table
from localllm.grammar.schema.uniqueness import settle_twins, settle_unique

# Items of a tuple, and names, for which it is decided one by one whether they are what must be there.
MAX_CHOICES = 8
# Names of a finite language that may become declared properties.
MAX_NAMES = 64

LeaveOut = Callable[[UnsupportedSchemaError], None]


def lower(table: Table, node: Node, leave_out: LeaveOut) -> Shape:
    """The shape of a node, with the table's ids. `leave_out` is told of what cannot be enforced; it may raise it."""
    arrays = tuple(shape for array in node.arrays for shape in _lower_array(table, array, leave_out))
    objects = tuple(shape for found in node.objects for shape in _lower_object(table, found, leave_out))
    if len(arrays) > MAX_ALTERNATIVES or len(objects) > MAX_ALTERNATIVES:
        raise TooComplexError(f"{node.path}: more than {MAX_ALTERNATIVES} alternatives")
    return Shape(node.has_null, node.booleans, node.numbers, node.strings, arrays, objects, node.path)


def _lower_array(table: Table, array: ArrayNode, leave_out: LeaveOut) -> Iterator[ArrayShape]:
    if table.is_empty_array(array):
        return
    if not array.contains and array.unique is None and array.twins is None:
        yield _array_shape(array)
        return
    for part in _without_contains(table, array, leave_out):
        if table.is_empty_array(part):
            continue
        settled = settle_twins(table, settle_unique(table, part, leave_out), leave_out)
        if settled is not None:
            yield _array_shape(settled, table)


def _array_shape(array: ArrayNode, table: Table | None = None) -> ArrayShape:
    rest = None if array.rest == NEVER else array.rest
    if not array.contains or table is None:
        return ArrayShape(array.prefix, rest, array.least, array.most, is_unique=array.unique is not None)
    (part,) = array.contains
    others = None
    if part.most is not None:
        others = table.both(array.rest, table.no(part.shape))
    return ArrayShape(
        array.prefix,
        rest,
        array.least,
        array.most,
        table.both(array.rest, part.shape),
        part.least,
        part.most,
        None if others == NEVER else others,
        array.unique is not None,
    )


def _without_contains(table: Table, array: ArrayNode, leave_out: LeaveOut) -> Iterator[ArrayNode]:
    """The same arrays as alternatives with at most one condition on what they contain, which is on the items after the
    prefix."""
    for index, part in enumerate(array.contains):
        others = array.contains[:index] + array.contains[index + 1 :]
        if part.least == 0 and part.most is None:
            yield from _without_contains(table, replace(array, contains=others), leave_out)
            return
        if part.least == 0 and part.most == 0:
            none = _with_items(table, array, part.start, table.no(part.shape), others)
            if none is not None:
                yield from _without_contains(table, none, leave_out)
            return
        if array.rest == NEVER or part.start != len(array.prefix):
            yield from _chosen(table, array, part, others, leave_out)
            return
        if table.is_empty(table.both(array.rest, table.no(part.shape))):
            most = None if part.most is None else part.most + len(array.prefix)
            longer = _with_lengths(replace(array, contains=others), part.least + len(array.prefix), most)
            if longer is not None:
                yield from _without_contains(table, longer, leave_out)
            return
    if len(array.contains) > 1:
        message = "several conditions on what an array contains cannot be enforced at once"
        blame = array.contains[1].blame
        leave_out(UnsupportedSchemaError(message, path=blame.path, keyword=blame.keyword))
        array = replace(array, contains=array.contains[:1])
    yield array


def _with_items(
    table: Table, array: ArrayNode, start: int, shape: ShapeId, contains: tuple[Contains, ...]
) -> ArrayNode | None:
    """The array with all items from `start` on of a shape too."""
    n_prefix = max(start, len(array.prefix))
    prefix = tuple(
        table.both(array.item(index), shape) if index >= start else array.item(index) for index in range(n_prefix)
    )
    return tidy_array(replace(array, prefix=prefix, rest=table.both(array.rest, shape), contains=contains))


def _with_lengths(array: ArrayNode, least: int, most: int | None) -> ArrayNode | None:
    longest = array.most if most is None else (most if array.most is None else min(most, array.most))
    return tidy_array(replace(array, least=max(least, array.least), most=longest))


def _chosen(
    table: Table, array: ArrayNode, part: Contains, others: tuple[Contains, ...], leave_out: LeaveOut
) -> Iterator[ArrayNode]:
    """Alternatives for which items of the prefix are those that must be contained."""
    n_prefix = max(len(array.prefix), part.start)
    prefix = tuple(array.item(index) for index in range(n_prefix))
    base = replace(array, prefix=prefix, contains=others)
    n_open = n_prefix - part.start
    if n_open > MAX_CHOICES and not (part.least == 1 and part.most is None):
        message = f"a condition on what a tuple of {n_prefix} items contains cannot be enforced"
        leave_out(UnsupportedSchemaError(message, path=part.blame.path, keyword=part.blame.keyword))
        yield from _without_contains(table, base, leave_out)
        return
    if part.least == 1 and part.most is None:
        for index in range(part.start, n_prefix):
            one = (*prefix[:index], table.both(prefix[index], part.shape), *prefix[index + 1 :])
            found = _with_lengths(replace(base, prefix=one), index + 1, None)
            if found is not None:
                yield from _without_contains(table, found, leave_out)
        if array.rest != NEVER:
            after = replace(base, contains=(*others, part._replace(start=n_prefix)))
            found = _with_lengths(after, n_prefix + 1, None)
            if found is not None:
                yield from _without_contains(table, found, leave_out)
        return
    yield from _counted(table, base, part, others, leave_out)


def _counted(
    table: Table, base: ArrayNode, part: Contains, others: tuple[Contains, ...], leave_out: LeaveOut
) -> Iterator[ArrayNode]:
    """Alternatives for each number of items and each set of those of the prefix that are counted."""
    prefix, n_prefix = base.prefix, len(base.prefix)
    for length in range(n_prefix + 1):
        for chosen in itertools.product((True, False), repeat=max(length - part.start, 0)):
            n_chosen = sum(chosen)
            if part.most is not None and n_chosen > part.most:
                continue
            decided = tuple(
                table.both(prefix[part.start + index], part.shape if is_one else table.no(part.shape))
                for index, is_one in enumerate(chosen)
            )
            items = (*prefix[: part.start], *decided)[:length]
            if n_chosen >= part.least:
                exact = _with_lengths(replace(base, prefix=items, rest=NEVER), length, length)
                if exact is not None:
                    yield from _without_contains(table, exact, leave_out)
            if length == n_prefix and base.rest != NEVER:
                most = None if part.most is None else part.most - n_chosen
                rest = part._replace(start=n_prefix, least=max(part.least - n_chosen, 0), most=most)
                longer = _with_lengths(replace(base, prefix=items, contains=(*others, rest)), n_prefix + 1, None)
                if longer is not None:
                    yield from _without_contains(table, longer, leave_out)


def _lower_object(table: Table, found: ObjectNode, leave_out: LeaveOut) -> Iterator[ObjectShape]:
    if table.is_empty_object(found):
        return
    if found.some:
        for part in _without_some(table, found, leave_out):
            yield from _lower_object(table, part, leave_out)
        return
    yield ObjectShape(
        {name: shape for name, shape in found.properties.items() if shape != NEVER},
        found.required,
        tuple(_families_without_names(table, found)),
        max(found.least, len(found.required)),
        found.most,
    )


def _families_without_names(table: Table, found: ObjectNode) -> Iterator[tuple[Language, ShapeId]]:
    for language, shape in found.families:
        others = table.languages.without_names(language, found.properties)
        if shape != NEVER and not others.is_empty:
            yield others, shape


def _without_some(table: Table, found: ObjectNode, leave_out: LeaveOut) -> Iterator[ObjectNode]:
    """The same objects as alternatives with one condition less on what they have."""
    part, base = found.some[0], replace(found, some=found.some[1:])
    possible = [(where, shape) for where, shape in candidates(table, found, part) if not table.is_empty(shape)]
    names: dict[str, ShapeId] = {}
    is_open = False
    for where, shape in possible:
        listed = [where] if isinstance(where, str) else where.strings(MAX_NAMES)
        is_open = is_open or listed is None
        names.update(dict.fromkeys(listed or (), shape))
    declared = _with_all_but_languages(table, found, part) if is_open else found
    if declared is None or len(names) > MAX_NAMES:
        message = "that there is a property whose name or value fits a condition cannot be enforced"
        leave_out(UnsupportedSchemaError(message, path=part.blame.path, keyword=part.blame.keyword))
        yield base
        return
    for name, shape in names.items():
        one = intersect_objects(table, base, ObjectNode({name: shape}, frozenset((name,))))
        if one is not None:
            yield one
    if is_open:
        yield from _with_one_more(declared, base)


def _with_all_but_languages(table: Table, found: ObjectNode, part: Some) -> ObjectNode | None:
    """The object with more names declared, so that any name that is not would do for the condition; None if that takes
    too many."""
    properties = dict(found.properties)
    for language, shape in found.families:
        others = table.languages.without_names(table.languages.without(language, part.names), found.properties)
        names = others.strings(MAX_CHOICES)
        if names is None or not table.is_empty(table.both(shape, table.no(part.shape))):
            return None
        properties.update(dict.fromkeys(names, shape))
    return replace(found, properties=properties) if len(properties) <= MAX_CHOICES else None


def _with_one_more(declared: ObjectNode, base: ObjectNode) -> Iterator[ObjectNode]:
    """Alternatives for which of the declared properties are there, each with a property more than those."""
    names = [name for name, shape in declared.properties.items() if shape != NEVER]
    for chosen in itertools.product((True, False), repeat=len(names)):
        there = {name for name, is_there in zip(names, chosen, strict=True) if is_there}
        if not declared.required <= there:
            continue
        properties = {name: shape if name in there else NEVER for name, shape in declared.properties.items()}
        yield replace(base, properties=properties, required=frozenset(there), least=max(base.least, len(there) + 1))

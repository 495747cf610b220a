"""Intersection, union and complement of what nodes consist of; their children stay ids of the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from localllm.grammar.errors import TooComplexError
from localllm.grammar.regular import Language
from localllm.grammar.schema import ranges
from localllm.grammar.schema.containment import Nodes, without_contained
from localllm.grammar.schema.nodes import (
    ANY,
    ANY_STRING,
    ANYTHING,
    FREE_ARRAY,
    FREE_OBJECT,
    NEVER,
    ArrayNode,
    Blame,
    Contains,
    Node,
    ObjectNode,
    Some,
    is_free_array,
    is_free_object,
)
from localllm.grammar.schema.shapes import ShapeId

# Ways to be an object, or an array, that one shape may have.
MAX_ALTERNATIVES = 400
# More than these are looked at closely: some may be empty.
FEW = 3

T = TypeVar("T")


class Ids(Nodes, Protocol):
    """The part of a table that combining needs."""

    def both(self, a: ShapeId, b: ShapeId) -> ShapeId: ...

    def is_empty_object(self, found: ObjectNode) -> bool: ...

    def no(self, a: ShapeId) -> ShapeId: ...

    def spend(self, amount: int) -> None: ...


def intersect(table: Ids, a: Node, b: Node) -> Node:
    """The values of both; declared properties come in the order of a, then of b."""
    if a is ANYTHING or b is ANYTHING:
        return b if a is ANYTHING else a
    return Node(
        a.has_null and b.has_null,
        a.booleans & b.booleans,
        ranges.intersect(a.numbers, b.numbers) if a.numbers and b.numbers else (),
        _common_strings(table, a.strings, b.strings),
        _common_arrays(table, a.arrays, b.arrays) if a.arrays and b.arrays else (),
        _common_objects(table, a.objects, b.objects) if a.objects and b.objects else (),
        a.path,
    )


def _common_strings(table: Ids, a: Language | None, b: Language | None) -> Language | None:
    if a is None or b is None:
        return None
    found = table.languages.both(a, b)
    return None if found.is_empty else found


def _common_arrays(table: Ids, ours: Sequence[ArrayNode], theirs: Sequence[ArrayNode]) -> tuple[ArrayNode, ...]:
    table.spend(len(ours) * len(theirs))
    found = (intersect_arrays(table, a, b) for a in ours for b in theirs)
    return limited({array.key: array for array in found if array is not None}.values())


def _common_objects(table: Ids, ours: Sequence[ObjectNode], theirs: Sequence[ObjectNode]) -> tuple[ObjectNode, ...]:
    table.spend(len(ours) * len(theirs))
    if len(ours) == len(theirs) == 1:
        one = intersect_objects(table, ours[0], theirs[0])
        return () if one is None else (one,)
    found = (intersect_objects(table, a, b) for a in ours for b in theirs)
    different = list({node.key: node for node in found if node is not None}.values())
    if len(different) > FEW:
        different = [node for node in different if not table.is_empty_object(node)]
    return limited(without_contained(table, different))


def intersect_arrays(table: Ids, a: ArrayNode, b: ArrayNode) -> ArrayNode | None:
    """The arrays of both; None where plainly there are none."""
    if a is FREE_ARRAY or b is FREE_ARRAY:
        return b if a is FREE_ARRAY else a
    least, most = max(a.least, b.least), _least_of(a.most, b.most)
    if most is not None and least > most:
        return None
    if (a.unique and b.twins) or (a.twins and b.unique):
        return None
    n_prefix = max(len(a.prefix), len(b.prefix))
    prefix = tuple(table.both(a.item(index), b.item(index)) for index in range(n_prefix))
    return tidy_array(
        ArrayNode(
            prefix,
            table.both(a.rest, b.rest),
            least,
            most,
            tuple(dict.fromkeys((*a.contains, *b.contains))),
            a.unique or b.unique,
            a.twins or b.twins,
            a.evaluated | b.evaluated,
        )
    )


def tidy_array(array: ArrayNode) -> ArrayNode | None:
    """The same arrays, of lengths that there can be; None where plainly there are none."""
    most = array.most
    if array.rest == NEVER:
        most = _least_of(most, len(array.prefix))
    if NEVER in array.prefix:
        most = _least_of(most, array.prefix.index(NEVER))
    if most is not None:
        if array.least > most:
            return None
        array.most = most
        if most < len(array.prefix):
            array.prefix = array.prefix[:most]
    for part in array.contains:
        if part.least > 0 and (part.shape == NEVER or (most is not None and most - part.start < part.least)):
            return None
    return array


def intersect_objects(table: Ids, a: ObjectNode, b: ObjectNode) -> ObjectNode | None:
    """The objects of both; None where plainly there are none."""
    if a is FREE_OBJECT or b is FREE_OBJECT:
        return b if a is FREE_OBJECT else a
    properties = {name: table.both(shape, b.value(name)) for name, shape in a.properties.items()}
    for name, shape in b.properties.items():
        if name not in properties:
            properties[name] = table.both(a.value(name), shape)
    required = a.required | b.required
    if any(properties[name] == NEVER for name in required):
        return None
    least, most = max(a.least, b.least), _least_of(a.most, b.most)
    if most is not None and max(least, len(required)) > most:
        return None
    table.spend(1 + (len(properties) >> 2))
    families = _common_families(table, a.families, b.families)
    some = tuple(dict.fromkeys((*a.some, *b.some)))
    found = ObjectNode(properties, required, families, least, most, some, a.evaluated | b.evaluated)
    return found if all(may_have(table, found, part) for part in some) else None


def _common_families(
    table: Ids, ours: tuple[tuple[Language, ShapeId], ...], theirs: tuple[tuple[Language, ShapeId], ...]
) -> tuple[tuple[Language, ShapeId], ...]:
    if ours is theirs:
        return ours
    found = []
    for language, shape in ours:
        for other, its_shape in theirs:
            both = table.both(shape, its_shape)
            if both == NEVER:
                continue
            common = _common_strings(table, language, other)
            if common is not None:
                found.append((common, both))
    return tuple(found)


def may_have(table: Ids, found: ObjectNode, part: Some) -> bool:
    """Whether a property as `part` wants it does not plainly contradict the rest."""
    return any(True for _ in candidates(table, found, part))


def candidates(table: Ids, found: ObjectNode, part: Some) -> Iterable[tuple[str | Language, ShapeId]]:
    """Names, and languages of other names, with the shapes that a property as `part` wants it has there."""
    for name, shape in found.properties.items():
        if part.names.contains(name):
            both = table.both(shape, part.shape)
            if both != NEVER:
                yield name, both
    for language, shape in found.families:
        both = table.both(shape, part.shape)
        if both != NEVER:
            common = _common_strings(table, language, part.names)
            if common is not None:
                others = table.languages.without_names(common, found.properties)
                if not others.is_empty:
                    yield others, both


def _least_of(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def limited(found: Iterable[T]) -> tuple[T, ...]:
    """Them as a tuple. Raises TooComplexError where they are too many."""
    alternatives = tuple(found)
    if len(alternatives) > MAX_ALTERNATIVES:
        raise TooComplexError(
            f"a schema asks for {len(alternatives)} alternatives at once (at most {MAX_ALTERNATIVES})"
        )
    return alternatives


def unite(table: Ids, nodes: Sequence[Node]) -> Node:
    """The values of any of them. Objects and arrays stay alternatives, which may overlap."""
    if len(nodes) == 1:
        return nodes[0]
    languages = list({id(node.strings): node.strings for node in nodes if node.strings is not None}.values())
    strings = table.languages.any_of(languages) if len(languages) > 1 else (languages[0] if languages else None)
    return Node(
        any(node.has_null for node in nodes),
        frozenset().union(*(node.booleans for node in nodes)),
        ranges.unite(part for node in nodes for part in node.numbers),
        strings,
        _any_array([array for node in nodes for array in node.arrays]),
        _any_object([found for node in nodes for found in node.objects]),
        nodes[0].path if nodes else "#",
    )


def _any_array(arrays: list[ArrayNode]) -> tuple[ArrayNode, ...]:
    if len(arrays) < 2:
        return tuple(arrays)
    if any(is_free_array(array) for array in arrays) and not any(array.evaluated is not _NONE for array in arrays):
        return (FREE_ARRAY,)
    return limited({array.key: array for array in arrays}.values())


def _any_object(objects: list[ObjectNode]) -> tuple[ObjectNode, ...]:
    if len(objects) < 2:
        return tuple(objects)
    if not any(found.evaluated is not _NONE for found in objects):
        free = next((found for found in objects if is_free_object(found)), None)
        if free is not None:
            return (free,)
    return limited({found.key: found for found in objects}.values())


_NONE = FREE_OBJECT.evaluated


def other_arrays(table: Ids, array: ArrayNode, blame: Blame) -> tuple[ArrayNode, ...]:
    """The arrays that are not of the node, as alternatives."""
    found = []
    if array.least:
        found.append(ArrayNode(most=array.least - 1))
    if array.most is not None:
        found.append(ArrayNode(least=array.most + 1))
    for index, shape in enumerate(array.prefix):
        if shape != ANY:
            found.append(ArrayNode(prefix=(ANY,) * index + (table.no(shape),), least=index + 1))
    n_prefix = len(array.prefix)
    if array.rest == NEVER:
        found.append(ArrayNode(least=n_prefix + 1))
    elif array.rest != ANY:
        found.append(ArrayNode(contains=(Contains(n_prefix, table.no(array.rest), 1, None, blame),)))
    for part in array.contains:
        if part.least:
            found.append(ArrayNode(contains=(Contains(part.start, part.shape, 0, part.least - 1, blame),)))
        if part.most is not None:
            found.append(ArrayNode(contains=(Contains(part.start, part.shape, part.most + 1, None, blame),)))
    if array.unique is not None:
        found.append(ArrayNode(twins=blame))
    if array.twins is not None:
        found.append(ArrayNode(unique=blame))
    return tuple(other for other in map(tidy_array, found) if other is not None)


def other_objects(table: Ids, node: ObjectNode, blame: Blame) -> tuple[ObjectNode, ...]:
    """The objects that are not of the node, as alternatives."""
    found = [ObjectNode({name: NEVER}) for name in node.properties if name in node.required]
    for name, shape in node.properties.items():
        other = table.no(shape)
        if other != NEVER:
            found.append(ObjectNode({name: other}, frozenset((name,))))
    rest = ANY_STRING
    for language, shape in node.families:
        rest = table.languages.without(rest, language)
        if shape != ANY:
            found.append(
                ObjectNode(
                    some=(Some(table.languages.without_names(language, node.properties), table.no(shape), blame),)
                )
            )
    rest = table.languages.without_names(rest, node.properties)
    if not rest.is_empty:
        found.append(ObjectNode(some=(Some(rest, ANY, blame),)))
    if node.least:
        found.append(ObjectNode(most=node.least - 1))
    if node.most is not None:
        found.append(ObjectNode(least=node.most + 1))
    for part in node.some:
        others = table.languages.without(ANY_STRING, part.names)
        families = ((part.names, table.no(part.shape)), (others, ANY))
        found.append(ObjectNode(families=families))
    return tuple(found)

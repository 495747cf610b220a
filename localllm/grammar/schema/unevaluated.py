"""unevaluatedProperties and unevaluatedItems: what they say of the properties and items that nothing else spoke of."""

from __future__ import annotations

from dataclasses import replace

from localllm.grammar.regular import Language
from localllm.grammar.schema.combining import tidy_array
from localllm.grammar.schema.nodes import ALL, NEVER, NOTHING, ArrayNode, Node, ObjectNode
from localllm.grammar.schema.shapes import ShapeId
from localllm.grammar.schema.sites import Site

UNEVALUATED = frozenset(("unevaluatedProperties", "unevaluatedItems"))


def close(site: Site, node: Node) -> Node:
    """The node, whose alternatives know what was evaluated, with the two keywords applied."""
    schema = site.place.schema
    arrays, objects = node.arrays, node.objects
    if "unevaluatedProperties" in site.present:
        shape = site.child(schema["unevaluatedProperties"], "unevaluatedProperties")
        closed = (_closed_object(site, found, shape) for found in objects)
        objects = tuple(found for found in closed if found is not None)
    if "unevaluatedItems" in site.present:
        shape = site.child(schema["unevaluatedItems"], "unevaluatedItems")
        arrays = tuple(array for array in (_closed_array(site, array, shape) for array in arrays) if array is not None)
    return replace(node, arrays=arrays, objects=objects)


def forget(node: Node) -> Node:
    """The same values, of which nobody asks what was evaluated."""
    arrays = {array.key: array for array in (replace(array, evaluated=NOTHING) for array in node.arrays)}
    objects = {found.key: found for found in (replace(found, evaluated=NOTHING) for found in node.objects)}
    return replace(node, arrays=tuple(arrays.values()), objects=tuple(objects.values()))


def _closed_object(site: Site, found: ObjectNode, shape: ShapeId) -> ObjectNode | None:
    evaluated = found.evaluated
    if evaluated.has_all:
        return found
    seen = evaluated.language
    properties = {
        name: value
        if name in evaluated.names or (seen is not None and seen.contains(name))
        else site.table.both(value, shape)
        for name, value in found.properties.items()
    }
    if any(properties[name] == NEVER for name in found.required):
        return None
    families: list[tuple[Language, ShapeId]] = []
    for language, value in found.families:
        both = site.table.both(value, shape)
        if seen is None:
            families.append((language, both))
            continue
        inside = site.table.languages.both(language, seen)
        families += [(inside, value), (site.table.languages.without(language, seen), both)]
    kept = tuple((language, value) for language, value in families if value != NEVER and not language.is_empty)
    return replace(found, properties=properties, families=kept, evaluated=ALL)


def _closed_array(site: Site, array: ArrayNode, shape: ShapeId) -> ArrayNode | None:
    evaluated = array.evaluated
    if evaluated.has_all:
        return array
    others = site.table.any_of((shape, *evaluated.contains))
    n_seen = evaluated.n_items
    n_prefix = max(len(array.prefix), n_seen)
    prefix = tuple(
        array.item(index) if index < n_seen else site.table.both(array.item(index), others) for index in range(n_prefix)
    )
    return tidy_array(replace(array, prefix=prefix, rest=site.table.both(array.rest, others), evaluated=ALL))

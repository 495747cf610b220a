"""Keywords that combine whole schemas which speak of the same value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from localllm.grammar.errors import SchemaError, TooComplexError
from localllm.grammar.schema.combining import MAX_ALTERNATIVES, intersect, unite
from localllm.grammar.schema.documents import pointer
from localllm.grammar.schema.nodes import ANY, ANYTHING, NEVER, NOTHING_FITS, Blame, Node, ObjectNode
from localllm.grammar.schema.shapes import ShapeId
from localllm.grammar.schema.sites import Site
from localllm.grammar.schema.table import Table
from localllm.grammar.schema.values import check_text, expect, names_of


def all_of(site: Site, keyword: str, node: Node) -> Node:
    """The values of all of the schemas."""
    for shape in _branches(site, keyword):
        node = intersect(site.table, node, site.table.node(shape))
    return node


def any_of(site: Site, keyword: str, node: Node) -> Node:
    """The values of at least one of the schemas.

    What several branches evaluate together is evaluated where all of them fit. So, where that matters, there is an
    alternative for each set of branches; the more it takes together, the less is unevaluated.
    """
    branches = [site.table.node(shape) for shape in _branches(site, keyword)]
    if not site.is_tracking:
        return intersect(site.table, node, unite(site.table, branches))
    found: list[Node] = []
    for branch in branches:
        found += [
            other
            for other in [intersect(site.table, before, branch) for before in (node, *found)]
            if not site.table.is_empty_node(other)
        ]
        if len(found) > MAX_ALTERNATIVES:
            raise TooComplexError(f"{site.place.path}: too many sets of `anyOf` branches")
    return unite(site.table, found) if found else NOTHING_FITS


def one_of(site: Site, keyword: str, node: Node) -> Node:
    """The values of exactly one of the schemas: of each those that no other one has."""
    table = site.table
    _accuse(site, keyword)
    shapes = _branches(site, keyword)
    plain = _branches(site, keyword, is_tracking=False) if site.is_tracking else shapes
    others = [table.node(shape) for shape in plain]
    scalars = _scalars_of_others(table, others)
    found = []
    compound = [(position, other) for position, other in enumerate(others) if other.arrays or other.objects]
    for index, shape in enumerate(shapes):
        if plain.count(plain[index]) > 1:
            continue
        one = table.without(intersect(table, node, table.node(shape)), scalars[index])
        for position, other in compound if one.arrays or one.objects else ():
            if position != index and not table.have_disjoint_parts(one, other):
                _accuse(site, keyword)
                one = table.without(one, replace(NOTHING_FITS, arrays=other.arrays, objects=other.objects))
        found.append(one)
    return unite(table, found) if found else NOTHING_FITS


def _scalars_of_others(table: Table, nodes: list[Node]) -> list[Node]:
    """For each node the values of all others that are neither arrays nor objects."""
    plain = [replace(node, arrays=(), objects=()) for node in nodes]
    before, behind = [NOTHING_FITS], [NOTHING_FITS]
    for node in plain[:-1]:
        before.append(unite(table, [before[-1], node]))
    for node in reversed(plain[1:]):
        behind.append(unite(table, [behind[-1], node]))
    return [unite(table, [a, b]) for a, b in zip(before, reversed(behind), strict=True)]


def not_(site: Site, keyword: str, node: Node) -> Node:
    """The values that are not of the schema."""
    shape = site.in_place(site.place.schema[keyword], keyword, is_tracking=False)
    other = site.table.node(shape)
    _accuse(site, keyword)
    return site.table.without(node, other)


def if_then_else(site: Site, keyword: str, node: Node) -> Node:
    """The values of `if` and `then`, and those of `else` that are not of `if`."""
    table, schema = site.table, site.place.schema
    branches = [name for name in ("then", "else") if name in site.present]
    if not branches and not site.is_tracking:
        return node
    condition = table.node(site.in_place(schema[keyword], keyword))
    plain = table.node(site.in_place(schema[keyword], keyword, is_tracking=False))
    then, other = (
        table.node(site.in_place(schema[name], name)) if name in branches else ANYTHING for name in ("then", "else")
    )
    _accuse(site, keyword)
    positive = intersect(table, intersect(table, node, condition), then)
    _accuse(site, keyword)
    negative = table.without(intersect(table, node, other), plain)
    return unite(table, [table.without_empty(positive), table.without_empty(negative)])


def dependencies(site: Site, keyword: str, node: Node) -> Node:
    """What holds where a property is there: others are there too, or the object is of a schema."""
    value = site.place.schema[keyword]
    expect(value, dict, "an object", site.place, keyword)
    for name, wanted in value.items():
        node = intersect(site.table, node, _dependency(site, keyword, name, wanted))
        node = site.table.without_empty(node)
    return node


def _dependency(site: Site, keyword: str, name: str, wanted: Any) -> Node:
    path = pointer(site.place.path, keyword, name)
    check_text(name, path, keyword)
    absent = replace(ANYTHING, objects=(ObjectNode({name: NEVER}),))
    if keyword == "dependentRequired" or (keyword == "dependencies" and isinstance(wanted, list)):
        present = Node(objects=(_having(names_of(wanted, site.place, keyword)),))
    else:
        present = site.table.node(site.in_place(wanted, keyword, name))
    if site.is_tracking:  # what the schema evaluates counts only where the property is there
        present = intersect(site.table, Node(objects=(_having((name,)),)), present)
    return unite(site.table, [absent, present])


def _having(names: Iterable[str]) -> ObjectNode:
    properties = dict.fromkeys(names, ANY)
    return ObjectNode(properties, frozenset(properties))


def _branches(site: Site, keyword: str, is_tracking: bool | None = None) -> list[ShapeId]:
    schemas = site.place.schema[keyword]
    if not isinstance(schemas, list) or not schemas:
        message = f"`{keyword}` must be a list of at least one schema, not {schemas!r:.100}"
        raise SchemaError(message, path=pointer(site.place.path, keyword))
    tracking = site.is_tracking if is_tracking is None else is_tracking
    return [site.in_place(schema, keyword, index, is_tracking=tracking) for index, schema in enumerate(schemas)]


def _accuse(site: Site, keyword: str) -> None:
    site.table.blame = Blame(keyword, pointer(site.place.path, keyword))

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
from localllm.grammar.schema.values import check_text, expect, names_of


def all_of(site: Site, keyword: str) -> Node:
    """The values of all of the schemas."""
    node = ANYTHING
    for shape in _branches(site, keyword):
        node = intersect(site.table, node, site.table.node(shape))
    return node


def any_of(site: Site, keyword: str) -> Node:
    """The values of at least one of the schemas.

    What several branches evaluate together is evaluated where all of them fit. So, where that matters, there is an
    alternative for each set of branches; the more it takes together, the less is unevaluated.
    """
    nodes = [site.table.node(shape) for shape in _branches(site, keyword)]
    return _together(site, nodes) if site.is_tracking else unite(site.table, nodes)


def _together(site: Site, nodes: list[Node]) -> Node:
    found: list[Node] = []
    for node in nodes:
        common = (intersect(site.table, other, node) for other in found)
        found += [node, *(other for other in common if not site.table.is_empty_node(other))]
        if len(found) > MAX_ALTERNATIVES:
            raise TooComplexError(f"{site.place.path}: too many sets of `anyOf` branches")
    return unite(site.table, found)


def one_of(site: Site, keyword: str) -> Node:
    """The values of exactly one of the schemas: of each those that no other one has."""
    table = site.table
    _accuse(site, keyword)
    shapes = _branches(site, keyword)
    nodes = [table.node(shape) for shape in shapes]
    plain = _branches(site, keyword, is_tracking=False) if site.is_tracking else shapes
    others = [table.node(shape) for shape in plain]
    found = []
    for index, node in enumerate(nodes):
        if plain.count(plain[index]) > 1:
            continue
        for position, other in enumerate(others):
            if position != index:
                _accuse(site, keyword)
                node = table.without(node, other)
        found.append(node)
    return unite(table, found) if found else NOTHING_FITS


def not_(site: Site, keyword: str) -> Node:
    """The values that are not of the schema."""
    _accuse(site, keyword)
    return site.table.node(site.table.no(site.in_place(site.place.schema[keyword], keyword, is_tracking=False)))


def if_then_else(site: Site, keyword: str) -> Node:
    """The values of `if` and `then`, and those of `else` that are not of `if`."""
    table, schema = site.table, site.place.schema
    branches = [name for name in ("then", "else") if name in site.present]
    if not branches and not site.is_tracking:
        return ANYTHING
    _accuse(site, keyword)
    condition = site.in_place(schema[keyword], keyword)
    opposite = table.no(site.in_place(schema[keyword], keyword, is_tracking=False))
    then, other = (site.in_place(schema[name], name) if name in branches else ANY for name in ("then", "else"))
    positive = intersect(table, table.node(condition), table.node(then))
    negative = intersect(table, table.node(opposite), table.node(other))
    return unite(table, [table.without_empty(positive), table.without_empty(negative)])


def dependencies(site: Site, keyword: str) -> Node:
    """What holds where a property is there: others are there too, or the object is of a schema."""
    value = site.place.schema[keyword]
    expect(value, dict, "an object", site.place, keyword)
    _accuse(site, keyword)
    node = ANYTHING
    for name, wanted in value.items():
        node = intersect(site.table, node, _dependency(site, keyword, name, wanted))
    return node


def _dependency(site: Site, keyword: str, name: str, wanted: Any) -> Node:
    path = pointer(site.place.path, keyword, name)
    check_text(name, path, keyword)
    absent = replace(ANYTHING, objects=(ObjectNode({name: NEVER}),))
    if keyword == "dependentRequired" or (keyword == "dependencies" and isinstance(wanted, list)):
        names = dict.fromkeys((name, *names_of(wanted, site.place, keyword)))
        present = Node(objects=(_having(names),))
    else:
        present = Node(objects=(_having((name,)),))
        shape = site.in_place(wanted, keyword, name)
        present = intersect(site.table, present, site.table.node(shape))
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

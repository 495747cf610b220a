"""From a schema to a node: each keyword says which values it permits, and those of all of them are the schema's."""

from __future__ import annotations

from localllm.grammar.errors import SchemaError, TooComplexError, UnsupportedSchemaError
from localllm.grammar.schema import applicators, ranges
from localllm.grammar.schema.array_keywords import ARRAY_KEYWORDS, arrays_of
from localllm.grammar.schema.combining import intersect
from localllm.grammar.schema.documents import RECURSIVE, Document, Place, pointer
from localllm.grammar.schema.drafts import KEYWORDS, Draft
from localllm.grammar.schema.nodes import (
    ANY,
    ANY_STRING,
    ANYTHING,
    BOTH,
    FREE_ARRAY,
    FREE_OBJECT,
    NEITHER,
    NEVER,
    Node,
)
from localllm.grammar.schema.object_keywords import OBJECT_KEYWORDS, objects_of
from localllm.grammar.schema.scalar_keywords import (
    ALL_TYPES,
    NUMBER_KEYWORDS,
    STRING_KEYWORDS,
    numbers_of,
    strings_of,
    types_of,
)
from localllm.grammar.schema.shapes import ShapeId
from localllm.grammar.schema.sites import Site
from localllm.grammar.schema.table import EndlessReferenceError, Table
from localllm.grammar.schema.unevaluated import UNEVALUATED, close, forget
from localllm.grammar.schema.values import expect, node_of_values

# Which dynamic anchors were met on the way to a schema, with where they lead: the first one of a name counts.
Scope = tuple[tuple[str, Place], ...]

_OF_ONE_TYPE = frozenset(("type",)) | NUMBER_KEYWORDS | STRING_KEYWORDS | ARRAY_KEYWORDS | OBJECT_KEYWORDS
_APPLICATORS = {
    "allOf": applicators.all_of,
    "anyOf": applicators.any_of,
    "oneOf": applicators.one_of,
    "not": applicators.not_,
    "if": applicators.if_then_else,
    "dependencies": applicators.dependencies,
    "dependentRequired": applicators.dependencies,
    "dependentSchemas": applicators.dependencies,
}
_IN_PLACE = frozenset((*_APPLICATORS, "$ref", "$dynamicRef", "$recursiveRef"))
# Those that make alternatives come last, with as much known as there is.
_DIVIDING = ("anyOf", "if", "dependentRequired", "dependentSchemas", "dependencies", "not", "oneOf")


class Reader:
    """Reads the schemas of a document into a table. `warnings` are what it left out, where it is lenient."""

    def __init__(self, document: Document, table: Table, *, is_lenient: bool) -> None:
        self.warnings: list[str] = []
        self._document = document
        self._table = table
        self._is_lenient = is_lenient

    def shape(self, place: Place, scope: Scope = (), *, is_tracking: bool = False) -> ShapeId:
        """The id of the shape of a schema."""
        schema = place.schema
        if not isinstance(schema, dict):
            if isinstance(schema, bool):
                return ANY if schema else NEVER
            message = f"a schema must be an object, true or false, not {schema!r:.100}"
            raise SchemaError(message, path=place.path)
        present = KEYWORDS[place.resource.draft].intersection(schema)
        if not present:
            return ANY
        if self._document.has_dynamic_anchors:
            scope = _entered(scope, place)
        key = (id(schema), scope, is_tracking)
        return self._table.define(key, lambda: self._placed_node(place, present, scope, is_tracking))

    def leave_out(self, error: UnsupportedSchemaError) -> None:
        """Raises the error, or notes it where the schema asked for leniency."""
        if not self._is_lenient:
            raise error
        warning = f"{error} (`{error.keyword}` is not enforced)"
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _placed_node(self, place: Place, present: frozenset[str], scope: Scope, is_tracking: bool) -> Node:
        """The node, or an error that says where."""
        try:
            return self._node(place, present, scope, is_tracking)
        except TooComplexError as error:
            raise error if str(error).startswith("#") else TooComplexError(f"{place.path}: {error}") from error

    def _node(self, place: Place, present: frozenset[str], scope: Scope, is_tracking: bool) -> Node:
        if "$ref" in present and place.resource.draft <= Draft.D7:  # what stands beside it says nothing
            site = self._site(place, present, scope, is_tracking)
            return self._applied(site, "$ref", ANYTHING, scope).at(place.path)
        closing = present & UNEVALUATED
        site = self._site(place, present, scope, is_tracking or bool(closing))
        node = self._node_of_types(site) if present & _OF_ONE_TYPE else ANYTHING
        node = self._with_values(site, node)
        if present & _IN_PLACE:
            for keyword in sorted(present & _IN_PLACE, key=list(place.schema).index):
                if keyword not in _DIVIDING:
                    node = self._applied(site, keyword, node, scope)
            for keyword in _DIVIDING:
                if keyword in present:
                    node = self._applied(site, keyword, node, scope)
        if closing:
            node = close(site, node)
            if not is_tracking:
                node = forget(node)
        return node if node.path == place.path else node.at(place.path)

    def _site(self, place: Place, present: frozenset[str], scope: Scope, is_tracking: bool) -> Site:
        def child(schema: object, *steps: str | int) -> ShapeId:
            return self.shape(self._document.place(place, schema, *steps), scope)

        def in_place(schema: object, *steps: str | int, is_tracking: bool = is_tracking) -> ShapeId:
            return self.shape(self._document.place(place, schema, *steps), scope, is_tracking=is_tracking)

        return Site(self._table, place, present, child, in_place, self.leave_out, is_tracking)

    def _node_of_types(self, site: Site) -> Node:
        """All values that `type` and the keywords about single types permit."""
        present = site.present
        types = types_of(site.place) if "type" in present else ALL_TYPES
        numbers = ranges.ALL_NUMBERS if "number" in types else (ranges.INTEGERS if "integer" in types else ())
        if present & NUMBER_KEYWORDS:
            numbers = ranges.intersect(numbers, numbers_of(site.place, present))
        strings = strings_of(site) if present & STRING_KEYWORDS else ANY_STRING
        arrays = arrays_of(site) if present & ARRAY_KEYWORDS else (FREE_ARRAY,)
        objects = objects_of(site) if present & OBJECT_KEYWORDS else (FREE_OBJECT,)
        return Node(
            "null" in types,
            BOTH if "boolean" in types else NEITHER,
            numbers,
            strings if "string" in types else None,
            arrays if "array" in types else (),
            objects if "object" in types else (),
            site.place.path,
        )

    def _with_values(self, site: Site, node: Node) -> Node:
        place, present = site.place, site.present
        if "enum" in present:
            expect(place.schema["enum"], list, "a list of values", place, "enum")
            if not place.schema["enum"]:
                raise SchemaError("`enum` must list a value", path=pointer(place.path, "enum"))
            values = node_of_values(self._table, place.schema["enum"], pointer(place.path, "enum"))
            node = intersect(self._table, node, values)
        if "const" in present:
            values = node_of_values(self._table, [place.schema["const"]], pointer(place.path, "const"))
            node = intersect(self._table, node, values)
        return node

    def _applied(self, site: Site, keyword: str, node: Node, scope: Scope) -> Node:
        apply, n_warnings = _APPLICATORS.get(keyword), len(self.warnings)
        try:
            if apply is not None:
                applied = apply(site, keyword, node)
                # Less the part that is left out, a schema has more values, all of which `not` would forbid.
                return node if keyword == "not" and len(self.warnings) > n_warnings else applied
            return intersect(self._table, node, self._follow(keyword, site.place, scope, site.is_tracking))
        except EndlessReferenceError:  # perhaps only somebody asking too early
            raise
        except UnsupportedSchemaError as error:
            self.leave_out(error)
            return node

    def _follow(self, keyword: str, place: Place, scope: Scope, is_tracking: bool) -> Node:
        """What a reference means, of whichever kind it is."""
        reference = place.schema[keyword]
        found = self._document.resolve(reference, place, keyword)
        if keyword != "$ref":
            name = RECURSIVE if keyword == "$recursiveRef" else reference.partition("#")[2]
            if found.resource.dynamic.get(name) is found:
                found = dict(scope).get(name, found)
        shape = self.shape(found, scope, is_tracking=is_tracking)
        try:
            return self._table.node(shape)
        except EndlessReferenceError as error:
            raise error if error.path else EndlessReferenceError(pointer(place.path, keyword), keyword) from error


def _entered(scope: Scope, place: Place) -> Scope:
    known = {name for name, _ in scope}
    added = tuple((name, found) for name, found in place.resource.dynamic.items() if name not in known)
    return scope + added

"""What the keywords about arrays say, without unevaluatedItems."""

from __future__ import annotations

from localllm.grammar.errors import SchemaError
from localllm.grammar.schema.combining import tidy_array
from localllm.grammar.schema.documents import pointer
from localllm.grammar.schema.drafts import Draft
from localllm.grammar.schema.nodes import ALL, ANY, NOTHING, ArrayNode, Blame, Contains, Evaluated
from localllm.grammar.schema.shapes import ShapeId
from localllm.grammar.schema.sites import Site
from localllm.grammar.schema.values import count_of, expect

ARRAY_KEYWORDS = frozenset(
    (
        *("items", "prefixItems", "additionalItems", "maxItems", "minItems", "uniqueItems"),
        *("contains", "minContains", "maxContains"),
    )
)


def arrays_of(site: Site) -> tuple[ArrayNode, ...]:
    """The arrays that the keywords about arrays permit."""
    place, present, schema = site.place, site.present, site.place.schema
    prefix, rest, n_evaluated = _items(site)
    least = count_of(place, "minItems") if "minItems" in present else 0
    most = count_of(place, "maxItems") if "maxItems" in present else None
    if most is not None and least > most:
        return ()
    unique = None
    if "uniqueItems" in present:
        expect(schema["uniqueItems"], bool, "true or false", place, "uniqueItems")
        if schema["uniqueItems"]:
            unique = Blame("uniqueItems", pointer(place.path, "uniqueItems"))
    contains = _contains(site)
    evaluated = NOTHING
    if site.is_tracking:
        sees_contains = contains is not None and place.resource.draft >= Draft.D2020
        evaluated = Evaluated(
            n_items=max(n_evaluated, 0), contains=(contains.shape,) if contains and sees_contains else ()
        )
        if n_evaluated < 0:
            evaluated = ALL
    conditions = (contains,) if contains is not None and (contains.least or contains.most is not None) else ()
    found = tidy_array(ArrayNode(prefix, rest, least, most, conditions, unique, None, evaluated))
    return () if found is None else (found,)


def _items(site: Site) -> tuple[tuple[ShapeId, ...], ShapeId, int]:
    """The shapes of the first items, that of the others, and for how many there is one (-1: for all)."""
    place, present, schema = site.place, site.present, site.place.schema
    prefix: tuple[ShapeId, ...] = ()
    rest_keyword = "items"
    if "prefixItems" in present:
        prefix = _tuple(site, "prefixItems")
    elif "items" in present and isinstance(schema["items"], list):
        if place.resource.draft == Draft.D2020:
            message = "`items` must be a schema; a list of schemas is `prefixItems`"
            raise SchemaError(message, path=pointer(place.path, "items"))
        prefix = _tuple(site, "items")
        rest_keyword = "additionalItems"
    if rest_keyword not in present:
        return prefix, ANY, len(prefix)
    return prefix, site.child(schema[rest_keyword], rest_keyword), -1


def _tuple(site: Site, keyword: str) -> tuple[ShapeId, ...]:
    schemas = site.place.schema[keyword]
    expect(schemas, list, "a list of schemas", site.place, keyword)
    return tuple(site.child(schema, keyword, index) for index, schema in enumerate(schemas))


def _contains(site: Site) -> Contains | None:
    place, present = site.place, site.present
    least = count_of(place, "minContains") if "minContains" in present else 1
    most = count_of(place, "maxContains") if "maxContains" in present else None
    if "contains" not in present:
        return None
    shape = site.child(place.schema["contains"], "contains")
    return Contains(0, shape, least, most, Blame("contains", pointer(place.path, "contains")))

"""What the keywords about objects say, without those about dependencies and unevaluatedProperties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from localllm.grammar.errors import SchemaError, UnsupportedSchemaError
from localllm.grammar.regular import Language
from localllm.grammar.schema.combining import intersect_objects
from localllm.grammar.schema.documents import Place, pointer
from localllm.grammar.schema.drafts import Draft
from localllm.grammar.schema.nodes import ALL, ANY, ANY_STRING, NEVER, NO_NAMES, NOTHING, Evaluated, ObjectNode
from localllm.grammar.schema.scalar_keywords import language_of_pattern
from localllm.grammar.schema.shapes import ShapeId
from localllm.grammar.schema.sites import Site
from localllm.grammar.schema.values import check_text, count_of, expect, names_of

OBJECT_KEYWORDS = frozenset(
    (
        *("properties", "patternProperties", "additionalProperties", "required", "propertyNames"),
        *("maxProperties", "minProperties"),
    )
)

# Languages that the names of an object are parted into by the patterns of patternProperties.
MAX_FAMILIES = 128


def objects_of(site: Site) -> tuple[ObjectNode, ...]:
    """The objects that the keywords about objects permit, without those about dependencies."""
    place, present, schema = site.place, site.present, site.place.schema
    properties: dict[str, ShapeId] = {}
    if "properties" in present:
        expect(schema["properties"], dict, "an object of schemas", place, "properties")
        for name, part in schema["properties"].items():
            _check_name(name, place, "properties")
            properties[name] = site.child(part, "properties", name)
    others = ANY
    if "additionalProperties" in present:
        others = site.child(schema["additionalProperties"], "additionalProperties")
    patterns = []
    if "patternProperties" in present:
        try:
            patterns = list(_patterns(site))
        except UnsupportedSchemaError as error:
            site.leave_out(error)
            others = ANY
    least = count_of(place, "minProperties") if "minProperties" in present else 0
    most = count_of(place, "maxProperties") if "maxProperties" in present else None
    evaluated = NOTHING
    if site.is_tracking:
        evaluated = _evaluated(present, properties, patterns)
    for pattern, shape in patterns:
        for name, declared in properties.items():
            if pattern.contains(name):
                properties[name] = site.table.both(declared, shape)
    families: tuple[tuple[Language, ShapeId], ...] = ((ANY_STRING, ANY),)
    try:
        families = _families(site, patterns, others)
    except UnsupportedSchemaError as error:
        site.leave_out(error)
    found = ObjectNode(properties, NO_NAMES, families, least, most, (), evaluated)
    if "required" in present:
        for name in _required(place):
            if name not in properties:
                properties[name] = found.value(name)
        found.required = frozenset(_required(place))
    if any(properties[name] == NEVER for name in found.required):
        return ()
    if most is not None and max(least, len(found.required)) > most:
        return ()
    narrowed: ObjectNode | None = found
    if "propertyNames" in present:
        names = site.table.node(site.child(schema["propertyNames"], "propertyNames")).strings
        only = ObjectNode(families=((names, ANY),) if names is not None else ())
        narrowed = intersect_objects(site.table, found, only)
    return () if narrowed is None else (narrowed,)


def _families(
    site: Site, patterns: list[tuple[Language, ShapeId]], others: ShapeId
) -> tuple[tuple[Language, ShapeId], ...]:
    """All names, parted by which patterns they match; what no pattern matches has the shape `others`."""
    languages = site.table.languages
    parts: list[tuple[Language, ShapeId | None]] = [(ANY_STRING, None)]
    for index, (pattern, shape) in enumerate(patterns):
        is_last = index == len(patterns) - 1
        divided: list[tuple[Language, ShapeId | None]] = []
        for language, so_far in parts:
            within = languages.both(language, pattern)
            if not within.is_empty:
                divided.append((within, shape if so_far is None else site.table.both(so_far, shape)))
            if so_far is None and is_last and others == NEVER:
                continue
            without = languages.without(language, pattern)
            if not without.is_empty:
                divided.append((without, so_far))
        parts = divided
        if len(parts) > MAX_FAMILIES:
            message = f"patterns divide the names into more than {MAX_FAMILIES} parts"
            raise UnsupportedSchemaError(message, path=site.place.path, keyword="patternProperties")
    found = ((language, others if shape is None else shape) for language, shape in parts)
    return tuple((language, shape) for language, shape in found if shape != NEVER)


def _check_name(name: object, place: Place, keyword: str) -> None:
    if not isinstance(name, str):
        message = f"`{keyword}` must have strings as names, not {name!r:.100}"
        raise SchemaError(message, path=pointer(place.path, keyword))
    check_text(name, pointer(place.path, keyword), keyword)


def _required(place: Place) -> tuple[str, ...]:
    value = place.schema["required"]
    if isinstance(value, bool) and place.resource.draft in (Draft.D4, Draft.ANY):
        return ()  # draft 3 said it of the property itself; since then it says nothing
    for name in names_of(value, place, "required"):
        _check_name(name, place, "required")
    return tuple(value)


def _patterns(site: Site) -> Iterator[tuple[Language, ShapeId]]:
    place = site.place
    value = place.schema["patternProperties"]
    expect(value, dict, "an object of schemas by regular expressions", place, "patternProperties")
    for pattern, part in value.items():
        _check_name(pattern, place, "patternProperties")
        path = pointer(place.path, "patternProperties", pattern)
        yield language_of_pattern(pattern, path, "patternProperties"), site.child(part, "patternProperties", pattern)


def _evaluated(
    present: frozenset[str], properties: dict[str, Any], patterns: list[tuple[Language, ShapeId]]
) -> Evaluated:
    if "additionalProperties" in present:
        return ALL
    language = None
    for pattern, _ in patterns:
        language = pattern if language is None else language | pattern
    return Evaluated(frozenset(properties), language)

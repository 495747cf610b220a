"""Schemas written by hand: what their normal forms accept, and what is refused, with the keyword and the place."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from localllm.grammar.errors import (
    SchemaError,
    UnsatisfiableSchemaError,
    UnsupportedSchemaError,
)
from localllm.grammar.schema.normalize import normalize
from localllm.grammar.schema.shapes import Shapes

Accepts = Callable[[Shapes, Any], bool]

D4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
D6 = {"$schema": "http://json-schema.org/draft-06/schema#"}
D7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
D19 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
D20 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}

# (schema, valid values, invalid values)
VERDICTS: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [None, 1, "", [], {}], []),
    ({"title": "x", "unheard-of": 1}, [None, True, 1.5, "a", [1], {"a": 1}], []),
    ({"type": ["integer", "null"]}, [1, 1.0, None], [1.5, "1", False]),
    ({"enum": [1, "a", None, [1, {"b": 2}]]}, [1, 1.0, "a", None, [1, {"b": 2}]], [True, "b", [1], {}]),
    ({"const": {"a": [False]}}, [{"a": [False]}], [{"a": [0]}, {}, {"a": [False], "b": 1}]),
    ({"enum": [1, 2], "type": "string"} | {"enum": [1, "x"]}, ["x"], [1]),
    # numbers
    ({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4}, [2, 3], [1, 4, 2.5]),
    ({"type": "number", "multipleOf": 0.1, "minimum": 0.25}, [0.3, 1], [0.25, 0.2]),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "number"}, [12, 0, -24], [4, 6, 18]),
    ({"minimum": 3, "exclusiveMinimum": True, "type": "number"}, [3.5], [3]),
    ({"minimum": 3, "exclusiveMinimum": 5, "type": "number"}, [5.5], [5]),
    ({"not": {"enum": [1, 2]}, "type": "integer", "minimum": 0, "maximum": 3}, [0, 3], [1, 2, 1.5]),
    ({"not": {"minimum": 3, "maximum": 5}, "type": "number"}, [2.9, 5.1], [3, 4, 5]),
    # strings
    ({"type": "string", "minLength": 2, "pattern": "^a", "maxLength": 3}, ["ab", "abc"], ["a", "abcd", "ba"]),
    ({"type": "string", "not": {"pattern": "b"}}, ["", "aa"], ["abc"]),
    ({"format": "date"}, ["2024-02-29", 3], ["2023-02-30"]),
    ({"format": "of our own"}, ["anything"], []),
    # arrays
    ({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2.0}, [[1], [1, 2], 3], [[], ["a"], [1, 2, 3]]),
    ({"prefixItems": [{"type": "null"}], "items": False}, [[], [None]], [[1], [None, None]]),
    ({"items": [{"type": "null"}], "additionalItems": {"type": "integer"}}, [[None, 1]], [[1], [None, "a"]]),
    (D7 | {"items": {"type": "null"}, "additionalItems": False}, [[None, None]], [[1]]),
    ({"prefixItems": [True, False, True]}, [[1]], [[1, 2]]),
    ({"contains": {"type": "null"}}, [[None], [1, None]], [[], [1]]),
    ({"contains": {"type": "null"}, "minContains": 2, "maxContains": 3}, [[None, 1, None]], [[None], [None] * 4]),
    ({"contains": {"const": 1}, "minContains": 0, "maxContains": 1}, [[], [1], [2]], [[1, 1]]),
    (
        {"prefixItems": [{"enum": [1, 2]}, {"type": "integer"}], "contains": {"const": 2}},
        [[2], [1, 2], [1, 1, 2]],
        [[1, 1]],
    ),
    (
        {"prefixItems": [{"enum": [1, 2]}, {"type": "integer"}], "contains": {"const": 2}, "maxContains": 1},
        [[2], [1, 2], [1, 1, 2], [2, 3, "a"]],
        [[1, 1], [2, 2], [2, 3, 2]],
    ),
    ({"contains": True, "minItems": 2}, [[1, 2]], [[1]]),
    ({"items": {"enum": ["a", "b", 3]}, "uniqueItems": True}, [["a", 3, "b"]], [["a", "a"], [3, 3.0]]),
    ({"prefixItems": [{"type": "null"}, {"type": "string"}], "items": False, "uniqueItems": True}, [[None, "a"]], []),
    ({"not": {"type": "array", "items": {"type": "string"}}}, [[1], ["a", 1], "x"], [[], ["a"]]),
    # objects
    ({"properties": {"a": {"type": "null"}}, "required": ["a", "b"]}, [{"a": None, "b": 1}], [{"a": None}, {"b": 1}]),
    ({"properties": {"a": True}, "additionalProperties": False, "minProperties": 1}, [{"a": 1}], [{}, {"b": 1}]),
    (
        {"patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 5}}, "additionalProperties": False},
        [{"a": 1, "xb": "t", "ab": 5}],
        [{"ab": 4}, {"ab": "x"}, {"c": 1}],
    ),
    (
        {"properties": {"ax": {"minimum": 3}}, "patternProperties": {"^a": {"type": "integer"}}},
        [{"ax": 3}],
        [{"ax": 3.5}, {"ax": 2}],
    ),
    ({"required": ["ab"], "patternProperties": {"^a": {"type": "null"}}}, [{"ab": None}], [{"ab": 1}, {}]),
    ({"propertyNames": {"maxLength": 2}, "properties": {"abc": True}}, [{"ab": 1}], [{"abc": 1}]),
    ({"properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
    ({"allOf": [{"properties": {"a": True}, "additionalProperties": False}, {"required": ["a"]}]}, [{"a": 1}], [{}]),
    ({"type": "object", "not": {"required": ["a", "b"]}}, [{"a": 1}, {}], [{"a": 1, "b": 1}]),
    ({"type": "object", "not": {"properties": {"a": {"const": 1}}}}, [{"a": 2}], [{}, {"a": 1}]),
    (
        {"type": "object", "not": {"properties": {"a": True}, "additionalProperties": False}},
        [{"b": 1}, {"a": 1, "b": 2}],
        [{}, {"a": 1}],
    ),
    # combinations
    ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, ["x", 3, None], [2]),
    ({"oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 4}]}, ["a", "abcde"], ["abc"]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}, 3]),
    ({"oneOf": [{"const": 1}, {"const": 1.0}, {"const": 2}]}, [2], [1]),
    (
        {
            "oneOf": [
                {"properties": {"t": {"const": "a"}, "v": {"type": "integer"}}, "required": ["t"]},
                {"properties": {"t": {"const": "b"}}, "required": ["t"]},
            ]
        },
        [{"t": "a", "v": 1}, {"t": "b", "v": "x"}],
        [{"t": "a", "v": "x"}, {"t": "c"}],
    ),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, [{"b": 1}, {"a": 1, "b": 1}, {}], [{"a": 1}]),
    ({"if": {"minimum": 3}, "then": {"multipleOf": 2}, "else": {"const": 1}, "type": "integer"}, [4, 1], [3, 2]),
    ({"dependentRequired": {"a": ["b"], "b": ["c"]}}, [{}, {"c": 1}, {"a": 1, "b": 1, "c": 1}], [{"a": 1, "b": 1}]),
    (D7 | {"dependencies": {"a": ["b"], "c": {"minProperties": 2}}}, [{"a": 1, "b": 1}], [{"a": 1}, {"c": 1}]),
    (
        {"dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}}},
        [{"a": 1, "b": None}, {"b": 1}],
        [{"a": 1, "b": 2}],
    ),
    # what a draft does not know is a remark
    (D4 | {"const": 1, "if": True, "then": False, "propertyNames": False}, [2, {"a": 1}], []),
    (D7 | {"minContains": 2, "contains": {"const": 1}, "unevaluatedProperties": False}, [[1], {"a": 1}], [[]]),
    (D20 | {"additionalItems": False, "items": True}, [[1]], []),
    # references
    ({"$ref": "#/$defs/a%25b~1c", "$defs": {"a%b/c": {"type": "null"}}}, [None], [1]),
    (D7 | {"definitions": {"a": {}}, "$ref": "#/definitions/a", "type": "null"}, [1, None], []),
    (D19 | {"$defs": {"a": {}}, "$ref": "#/$defs/a", "type": "null"}, [None], [1]),
    ({"$defs": {"n": {"$anchor": "here", "type": "null"}}, "$ref": "#here"}, [None], [1]),
    (D7 | {"definitions": {"n": {"$id": "#here", "type": "null"}}, "allOf": [{"$ref": "#here"}]}, [None], [1]),
    (
        {"$id": "http://x.y/z/root", "$defs": {"a": {"$id": "part", "$ref": "#/$defs/b", "$defs": {"b": {"const": 1}}}}}
        | {"$ref": "http://x.y/z/part"},
        [1],
        [2],
    ),
    ({"components": {"schemas": {"A": {"type": "null"}}}, "$ref": "#/components/schemas/A"}, [None], [1]),
    (
        {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
        [[], [[], [[]]]],
        [[1], {}],
    ),
    (
        {
            "$defs": {
                "a": {"properties": {"next": {"$ref": "#/$defs/a"}, "x": {"type": "integer"}}},
                "b": {"properties": {"next": {"$ref": "#/$defs/b"}, "x": {"minimum": 3}}},
            },
            "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        },
        [{"next": {"next": {"x": 3}}}],
        [{"next": {"next": {"x": 2}}}, {"next": {"x": 3.5}}],
    ),
    # unevaluated
    (
        {"allOf": [{"properties": {"a": True}}], "properties": {"b": True}, "unevaluatedProperties": False},
        [{"a": 1, "b": 1}],
        [{"c": 1}],
    ),
    (
        {"anyOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 1}}}]}
        | {"unevaluatedProperties": False},
        [{"a": 1, "b": 1}, {"a": 1}, {}],
        [{"a": 1, "b": 2}, {"c": 1}],
    ),
    (
        {"prefixItems": [True], "contains": {"type": "null"}, "unevaluatedItems": False},
        [[1, None], [None]],
        [[1], [None, 1]],
    ),
]


@pytest.mark.parametrize("schema, valid, invalid", VERDICTS, ids=lambda value: json.dumps(value)[:60])
def test_verdicts(accepts: Accepts, schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    shapes = normalize(schema)
    assert [value for value in valid if not accepts(shapes, value)] == []
    assert [value for value in invalid if accepts(shapes, value)] == []


@pytest.mark.parametrize(
    "schema, path",
    [
        (5, "#"),
        ({"type": 5}, "#/type"),
        ({"type": []}, "#/type"),
        ({"properties": {"a/b": {"type": "strnig"}}}, "#/properties/a~1b/type"),
        ({"properties": []}, "#/properties"),
        ({"properties": {"a": 1}}, "#/properties/a"),
        ({"required": "a"}, "#/required"),
        ({"minLength": -1}, "#/minLength"),
        ({"minLength": 1.5}, "#/minLength"),
        ({"maxItems": True}, "#/maxItems"),
        ({"minimum": "3"}, "#/minimum"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"enum": []}, "#/enum"),
        ({"enum": 3}, "#/enum"),
        ({"anyOf": []}, "#/anyOf"),
        ({"oneOf": {}}, "#/oneOf"),
        ({"items": 3}, "#/items"),
        ({"uniqueItems": 1}, "#/uniqueItems"),
        ({"patternProperties": {"(": True}}, "#/patternProperties/("),
        ({"pattern": 3}, "#/pattern"),
        ({"format": 3}, "#/format"),
        ({"$ref": 3}, "#/$ref"),
        ({"$ref": "#/nowhere"}, "#/$ref"),
        ({"dependentRequired": {"a": "b"}}, "#/dependentRequired"),
        (D7 | {"exclusiveMinimum": True, "minimum": 1}, "#/exclusiveMinimum"),
    ],
)
def test_malformed(schema: Any, path: str) -> None:
    with pytest.raises(SchemaError) as caught:
        normalize(schema)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "schema, keyword, path",
    [
        ({"uniqueItems": True}, "uniqueItems", "#/uniqueItems"),
        ({"properties": {"a": {"pattern": "(a)\\1"}}}, "pattern", "#/properties/a/pattern"),
        ({"$ref": "http://else.where/schema"}, "$ref", "#/$ref"),
        ({"$ref": "#"}, "$ref", "#/$ref"),
        (
            {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}},
            "$ref",
            "#/$defs/a/anyOf/0/$ref",
        ),
        ({"not": {"uniqueItems": True}}, "not", "#/not"),
        ({"not": {"patternProperties": {"^a": {"type": "null"}}}}, "not", "#/not"),
        ({"$schema": "http://my.own/vocabulary"}, "$schema", "#"),
        ({"format": "idn-hostname"}, "format", "#/format"),
    ],
)
def test_refused(schema: Any, keyword: str, path: str) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        normalize(schema)
    assert (caught.value.keyword, caught.value.path) == (keyword, path)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "object", "additionalProperties": False, "properties": {"a": {}}, "minProperties": 2},
        {"not": {}},
        {"type": "null", "oneOf": [{}, {}]},
        {"const": "abc", "maxLength": 2},
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
    ],
)
def test_unsatisfiable(schema: Any) -> None:
    with pytest.raises(UnsatisfiableSchemaError):
        normalize(schema)


def test_leniency_says_what_it_leaves_out(accepts: Accepts) -> None:
    schema = {"items": {"type": "string", "pattern": "(a)\\1", "minLength": 2}, "uniqueItems": True}
    with pytest.raises(UnsupportedSchemaError):
        normalize(schema)
    shapes = normalize(schema, is_lenient=True)
    assert accepts(shapes, ["bc", "bc"]) and not accepts(shapes, ["b"])
    assert len(shapes.warnings) == 2
    assert any("#/uniqueItems" in text for text in shapes.warnings)
    assert any("#/items/pattern" in text for text in shapes.warnings)


def test_numbers_are_those_that_were_written(accepts: Accepts) -> None:
    shapes = normalize(json.loads('{"minimum": 0.1000000000000000001, "type": "number"}', parse_float=Decimal))
    assert not accepts(shapes, Decimal("0.1")) and accepts(shapes, Decimal("0.1000000000000000001"))
    assert accepts(normalize({"maximum": 10**400}), 10**400)
    with pytest.raises(SchemaError):
        normalize({"maximum": Decimal("1e999999999")})


def test_declared_properties_keep_their_order() -> None:
    schema = {"properties": {"b": {}, "a": {}}, "allOf": [{"properties": {"c": {}, "b": {}}}], "required": ["z"]}
    shapes = normalize(schema)
    (found,) = shapes.table[shapes.root].objects
    assert list(found.properties) == ["b", "a", "z", "c"]


def test_all_values_have_one_shape() -> None:
    shapes = normalize({"type": "array", "prefixItems": [{}, {"type": "object"}]})
    (array,) = shapes.table[shapes.root].arrays
    assert array.prefix[0] == array.rest == shapes.any_value


@pytest.mark.parametrize(
    "schema, keyword",
    [
        (D7 | {"$ref": "http://else.where/schema"}, "$ref"),
        ({"properties": {"a": {"$ref": "http://else.where/schema"}}}, "$ref"),
        ({"patternProperties": {"(a)\\1": {"type": "null"}}, "additionalProperties": False}, "patternProperties"),
        ({"format": "idn-hostname"}, "format"),
        ({"anyOf": [{"not": {"uniqueItems": True}}, {"type": "object"}]}, "not"),
        ({"anyOf": [{"not": {"patternProperties": {"^a": {"type": "null"}}}}, {"type": "array"}]}, "not"),
        ({"allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}]}, "contains"),
    ],
)
def test_lenient_schemas_have_a_form(accepts: Accepts, schema: Any, keyword: str) -> None:
    with pytest.raises(UnsupportedSchemaError):
        normalize(schema)
    shapes = normalize(schema, is_lenient=True)
    assert accepts(shapes, {"aa": 1}) and accepts(shapes, [1, 2, 2])
    assert shapes.warnings and all(f"`{keyword}`" in text for text in shapes.warnings)


def test_leniency_leaves_no_reference_out_that_is_only_asked_too_early(accepts: Accepts) -> None:
    node = {"type": "object", "properties": {"next": {"allOf": [{"$ref": "#/$defs/node"}]}}, "required": ["kind"]}
    node["oneOf"] = [
        {"properties": {"next": {"required": ["x"]}}, "required": ["next"]},
        {"properties": {"next": {"required": ["y"]}}, "required": ["next"]},
        {"properties": {"kind": {"const": "end"}, "next": False}},
    ]
    shapes = normalize({"$ref": "#/$defs/node", "$defs": {"node": node}}, is_lenient=True)
    assert shapes.warnings == ()
    assert accepts(shapes, {"kind": 1, "next": {"kind": "end", "x": 1}})
    assert not accepts(shapes, {"kind": 1, "next": {"kind": 2, "x": 1}})
    with pytest.raises(UnsupportedSchemaError):
        normalize({"$ref": "#"}, is_lenient=True)

"""Random schemas: their normal forms accept what the package jsonschema takes for valid, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.grammar.errors import ConstraintError, UnsatisfiableSchemaError
from localllm.grammar.schema.normalize import normalize
from localllm.grammar.schema.shapes import Shapes

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
NAMES = ("a", "b", "c", "ab")
PATTERNS = ("^a", "b$", "a", "^ab*$", "^[ab]*$", "^$")
REFERENCES = ("#", "#/$defs/p", "#/$defs/q")
SUBSCHEMA = (
    *("items", "additionalProperties", "contains", "propertyNames", "not"),
    *("unevaluatedProperties", "unevaluatedItems"),
)
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "patternProperties", "dependentSchemas")
OTHERS = (
    "type",
    "enum",
    "const",
    "multipleOf",
    "pattern",
    "uniqueItems",
    "required",
    "dependentRequired",
    "if",
    "$ref",
)
KEYWORDS = (*SUBSCHEMA, *NUMBERS, *COUNTS, *LISTS, *MAPS, *OTHERS)


def random_value(random: Random, depth: int = 2) -> Any:
    kind = random.randrange(8 if depth else 6)
    if kind < 2:
        return random.choice((None, True, False))
    if kind < 4:
        return random.choice((0, 1, 2, 3, 5, -1, 1.5, 2.0, 0.5, 12))
    if kind < 6:
        return random.choice(("", "a", "b", "ab", "ba", "aab", "x"))
    if kind == 6:
        return [random_value(random, depth - 1) for _ in range(random.randrange(4))]
    names = (random.choice((*NAMES, "x")) for _ in range(random.randrange(4)))
    return {name: random_value(random, depth - 1) for name in names}


def random_schema(random: Random, depth: int) -> Any:
    if depth == 0:
        return random.choice((True, False, {"type": random.choice(TYPES)}, {"const": random_value(random, 1)}))
    schema: dict[str, Any] = {}
    for _ in range(random.randrange(1, 4)):
        keyword = random.choice(KEYWORDS)
        schema[keyword] = _random_argument(random, keyword, depth - 1)
        if keyword == "if":
            schema["then"] = random_schema(random, depth - 1)
            schema["else"] = random_schema(random, depth - 1)
        if keyword == "contains":
            schema |= {name: random.randrange(3) for name in ("minContains", "maxContains") if random.random() < 0.4}
    return schema


def _random_argument(random: Random, keyword: str, depth: int) -> Any:
    if keyword in SUBSCHEMA or keyword == "if":
        return random_schema(random, depth)
    if keyword in NUMBERS:
        return random.choice((0, 1, 2, 3, 1.5))
    if keyword in COUNTS:
        return random.randrange(4)
    if keyword in LISTS:
        return [random_schema(random, depth) for _ in range(random.randrange(1, 4))]
    if keyword in MAPS:
        names = PATTERNS if keyword == "patternProperties" else NAMES
        return {random.choice(names): random_schema(random, depth) for _ in range(random.randrange(1, 3))}
    arguments: dict[str, Callable[[], Any]] = {
        "type": lambda: random.choice(TYPES) if random.random() < 0.7 else random.sample(TYPES, 2),
        "enum": lambda: [random_value(random) for _ in range(random.randrange(1, 4))],
        "const": lambda: random_value(random),
        "multipleOf": lambda: random.choice((1, 2, 3, 0.5)),
        "pattern": lambda: random.choice(PATTERNS),
        "uniqueItems": lambda: random.random() < 0.7,
        "required": lambda: random.sample(NAMES, random.randrange(1, 3)),
        "dependentRequired": lambda: {random.choice(NAMES): [random.choice(NAMES)]},
        "$ref": lambda: random.choice(REFERENCES),
    }
    return arguments[keyword]()


@settings(max_examples=500, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_random_schemas(accepts: Callable[[Shapes, Any], bool], random: Random) -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "allOf": [random_schema(random, 2)]}
    schema["$defs"] = {"p": random_schema(random, 1), "q": random_schema(random, 0)}
    shapes = None
    try:
        shapes = normalize(schema)
    except UnsatisfiableSchemaError:
        pass
    except ConstraintError:
        return
    validator = jsonschema.Draft202012Validator(schema)
    for _ in range(20):
        value = random_value(random)
        accepted = shapes is not None and accepts(shapes, value)
        assert accepted == validator.is_valid(value), (schema, value)

"""Schemas that people had trouble with elsewhere, as texts that fit and texts that do not."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from localllm.grammar.constraint import Constraint
from localllm.grammar.errors import SchemaError
from localllm.grammar.schema import compile_schema
from localllm.grammar.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """Bytes, and an end."""
    return Vocabulary([*(bytes([byte]) for byte in range(256)), b""], [256], [256])


def verdicts(vocabulary: Vocabulary, schema: Any, texts: list[str]) -> list[bool]:
    """Which of the texts are whole answers."""
    constraint = Constraint(compile_schema(schema).grammar, vocabulary)
    matchers = [constraint.matcher() for _ in texts]
    return [m.accept_bytes(text.encode()) and m.is_complete() for m, text in zip(matchers, texts, strict=True)]


def boxes(key: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Boxes in boxes, whose definitions refer to one another, listed in some order."""

    def box(reference: str) -> dict[str, Any]:
        properties = {"v": {"$ref": f"#/{key}/{reference}"}}
        return {"type": "object", "properties": properties, "required": ["v"], "additionalProperties": False}

    definitions = {
        "Box": box("Bag"),
        "Bag": box("Leaf"),
        "Leaf": {"type": "boolean"},
        "Mood": {"enum": ["calm", "cross", 7]},
    }
    return {
        key: {name: definitions[name] for name in names},
        "type": "object",
        "properties": {"x": {"$ref": f"#/{key}/Box"}, "mood": {"$ref": f"#/{key}/Mood"}},
        "required": ["x", "mood"],
        "additionalProperties": False,
    }


def test_definitions_say_the_same_in_any_order(vocabulary: Vocabulary) -> None:
    fit = ['{"x":{"v":{"v":true}},"mood":"calm"}', '{"x":{"v":{"v":false}},"mood":7}']
    others = [
        '{"x":{"v":true},"mood":"calm"}',
        '{"x":{"v":{"v":"no"}},"mood":"calm"}',
        '{"x":{"v":{"v":true}},"mood":"glad"}',
        '{"x":{"v":{"v":true}},"mood":{"k":1}}',
    ]
    names = ("Box", "Bag", "Leaf", "Mood")
    for key, order in [*(("$defs", order) for order in itertools.permutations(names)), ("definitions", names)]:
        assert verdicts(vocabulary, boxes(key, order), [*fit, *others]) == [True] * 2 + [False] * 4


def test_of_several_faults_the_first_is_told() -> None:
    names = [f"name{i}" for i in range(12)]
    properties = {name: {"$ref": f"#/$defs/{name}"} for name in names}
    with pytest.raises(SchemaError, match=r"#/\$defs/name0'"):
        compile_schema({"type": "object", "properties": properties, "required": names})


def test_large_bounds_are_exact(vocabulary: Vocabulary) -> None:
    def numbers(n: int) -> str:
        return json.dumps([-1.5e3] * n, separators=(",", ":"))

    schema: dict[str, Any] = {"type": "array", "items": {"type": "number"}, "minItems": 12, "maxItems": 900}
    texts = [numbers(n) for n in (11, 12, 900, 901)]
    assert verdicts(vocabulary, schema, texts) == [False, True, True, False]
    inner = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 8192}}, "required": ["s"]}
    schema = {"type": "object", "properties": {"o": inner}, "required": ["o"]}
    texts = [f'{{"o":{{"s":"{"é" * n}"}}}}' for n in (0, 8192, 8193)]
    assert verdicts(vocabulary, schema, texts) == [True, True, False]
    schema = {"type": "string", "minLength": 3000, "maxLength": 3000}
    texts = [json.dumps("€" * n, ensure_ascii=False) for n in (2999, 3000, 3001)]
    assert verdicts(vocabulary, schema, texts) == [False, True, False]
    pair = {"type": "object", "properties": {"k": {"enum": ["u", "v"]}}, "required": ["k"]}
    schema = {"type": "array", "items": {"$ref": "#/$defs/p"}, "minItems": 50, "maxItems": 50, "$defs": {"p": pair}}
    texts = [json.dumps([{"k": "v"}] * n, separators=(",", ":")) for n in (49, 50, 51)]
    assert verdicts(vocabulary, schema, texts) == [False, True, False]


def test_leniency_within_not_forbids_nothing(vocabulary: Vocabulary) -> None:
    inner = {"pattern": r"(.)\1"}
    schema: dict[str, Any] = {"x-lenient": True, "enum": ["a", "bb"], "not": inner}
    assert verdicts(vocabulary, schema, ['"a"', '"bb"', '"c"']) == [True, True, False]
    (warning,) = compile_schema(schema).warnings
    assert warning.startswith("#/not/pattern: ")
    assert verdicts(vocabulary, {**schema, "not": {"enum": ["a"]}}, ['"a"', '"bb"']) == [False, True]

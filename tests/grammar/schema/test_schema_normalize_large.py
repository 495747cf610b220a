"""Large schemas of ordinary kinds stay small in normal form; hostile ones end with an error, soon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from localllm.grammar.errors import ConstraintError, TooComplexError
from localllm.grammar.schema.normalize import normalize
from localllm.grammar.schema.shapes import Shapes

Accepts = Callable[[Shapes, Any], bool]


def _kind(index: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": f"k{index}"}, f"v{index}": {}}, "required": ["kind"]}


def test_many_kinds_of_objects(accepts: Accepts) -> None:
    shapes = normalize({"oneOf": [_kind(index) | {"additionalProperties": False} for index in range(150)]})
    assert len(shapes.table[shapes.root].objects) == 150
    assert accepts(shapes, {"kind": "k149", "v149": 1}) and not accepts(shapes, {"kind": "k149", "v148": 1})


def test_many_values(accepts: Accepts) -> None:
    branches = [{"const": f"c{index}"} for index in range(200)] + [{"const": index} for index in range(200)]
    for keyword in ("oneOf", "anyOf"):
        shapes = normalize({keyword: branches})
        assert accepts(shapes, "c199") and accepts(shapes, 199) and not accepts(shapes, 200)
    assert accepts(normalize({"not": {"enum": list(range(3000))}}), 3000)


def test_conditions_on_one_property(accepts: Accepts) -> None:
    conditions = [
        {"if": {"properties": {"k": {"const": index}}, "required": ["k"]}, "then": {"required": [f"v{index}"]}}
        for index in range(30)
    ]
    shapes = normalize({"type": "object", "required": ["k"], "allOf": conditions})
    assert len(shapes.table[shapes.root].objects) <= 31
    assert accepts(shapes, {"k": 29, "v29": 1}) and not accepts(shapes, {"k": 29, "v28": 1})


def test_dependencies_on_one_property(accepts: Accepts) -> None:
    dependencies = {f"p{index}": {"properties": {"type": {"enum": ["a", f"t{index}"]}}} for index in range(9)}
    schema = {"type": "object", "required": ["type"], "dependentSchemas": dependencies}
    shapes = normalize(schema)
    assert accepts(shapes, {"type": "a", "p1": 1, "p2": 1}) and not accepts(shapes, {"type": "t1", "p1": 1, "p2": 1})


def test_deep_schemas(accepts: Accepts) -> None:
    schema: dict[str, Any] = {"type": "null"}
    value: Any = None
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        value = {"a": value}
    assert accepts(normalize(schema), value)


def _open(index: int) -> dict[str, Any]:
    return {"properties": {f"{name}{index}": {"type": "string"} for name in "abc"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [_open(index) for index in range(40)]},
        {"allOf": [{"anyOf": [_open(4 * index + way) for way in range(4)]} for index in range(12)]},
        {"dependentRequired": {f"p{index}": [f"q{index}"] for index in range(30)}},
        {"patternProperties": {f"a.*{index}": {"minimum": index} for index in range(40)}},
        {"anyOf": [{"properties": {f"p{index}": True}} for index in range(12)], "unevaluatedProperties": False},
    ],
)
def test_what_would_explode_is_refused(schema: Any) -> None:
    with pytest.raises(ConstraintError):
        normalize(schema)


def test_what_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"not": schema}
    with pytest.raises(TooComplexError):
        normalize(schema)

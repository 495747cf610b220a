"""Go's eq, ne, lt, le, gt and ge of template values; it knows nothing of how they are called."""

from __future__ import annotations

from typing import Any

from localllm.chat.go.formatting import show
from localllm.chat.go.values import CallError, kind, plain, type_name

BASIC = frozenset({"bool", "int", "float", "complex", "string"})


def equal(first: Any, *others: Any) -> bool:
    """Whether any of the others equals the first. Raises: CallError."""
    if not others:
        raise CallError("missing argument for comparison")
    return any(_equals(plain(first), plain(other)) for other in others)


def _equals(a: Any, b: Any) -> bool:
    kinds = (kind(a), kind(b))
    if kinds[0] in BASIC and kinds[0] == kinds[1]:
        return bool(a == b)
    if "invalid" in kinds:
        return _is_nil(a) and _is_nil(b)
    if BASIC.intersection(kinds):
        raise CallError(f"incompatible types for comparison: {type_name(a)} and {type_name(b)}")
    if kinds[0] != kinds[1]:
        raise CallError(f"non-comparable types {show(a)}: {type_name(a)}, {type_name(b)}: {show(b)}")
    if kinds[0] == "struct":
        return a is b
    if _is_nil(a) or _is_nil(b):
        return _is_nil(a) and _is_nil(b)
    raise CallError(f"non-comparable type {show(b)}: {type_name(b)}")


def _is_nil(value: Any) -> bool:
    return kind(value) == "invalid" or (isinstance(value, list | dict) and not value)


def not_equal(a: Any, b: Any) -> bool:
    return not equal(a, b)


def less(a: Any, b: Any) -> bool:
    """Raises: CallError."""
    a, b = plain(a), plain(b)
    kinds = (kind(a), kind(b))
    if not BASIC.issuperset(kinds):
        raise CallError("invalid type for comparison")
    if kinds[0] != kinds[1]:
        raise CallError(f"incompatible types for comparison: {type_name(a)} and {type_name(b)}")
    if kinds[0] in ("bool", "complex"):
        raise CallError("invalid type for comparison")
    return bool(a < b)


def less_or_equal(a: Any, b: Any) -> bool:
    return less(a, b) or equal(a, b)


def greater(a: Any, b: Any) -> bool:
    return not less_or_equal(a, b)


def greater_or_equal(a: Any, b: Any) -> bool:
    return not less(a, b)

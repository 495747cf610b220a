"""JSON values inside schemas: checked ones out of keywords, and nodes of single values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from localllm.grammar.errors import SchemaError, UnsupportedSchemaError
from localllm.grammar.regular import Language
from localllm.grammar.schema.documents import Place, pointer
from localllm.grammar.schema.nodes import NEVER, ArrayNode, Node, ObjectNode
from localllm.grammar.schema.ranges import point, unite
from localllm.grammar.schema.table import Table

# Of decimal numbers, which are written out.
MAX_EXPONENT = 5000


def expect(value: object, kind: type | tuple[type, ...], what: str, place: Place, keyword: str) -> None:
    """Raises SchemaError where the value of a keyword is not of the kind."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise SchemaError(f"`{keyword}` must be {what}, not {value!r:.100}", path=pointer(place.path, keyword))


def is_number(value: object) -> bool:
    return isinstance(value, (int, float, Decimal, Fraction)) and not isinstance(value, bool)


def exact(value: Any) -> Fraction:
    """The number as it was written; a float is its shortest decimal. Raises ValueError for NaN and infinities."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("not a finite number")
        return Fraction(repr(value))
    if isinstance(value, Decimal) and not -MAX_EXPONENT < value.adjusted() < MAX_EXPONENT:
        raise ValueError("a number with an exponent that is out of bounds")
    return Fraction(value)


def number_of(place: Place, keyword: str) -> Fraction:
    """The number that a keyword has."""
    value = place.schema[keyword]
    if not is_number(value):
        message = f"`{keyword}` must be a number, not {value!r:.100}"
        raise SchemaError(message, path=pointer(place.path, keyword))
    try:
        return exact(value)
    except (ValueError, OverflowError):
        message = f"`{keyword}` must be a finite number, not {value!r}"
        raise SchemaError(message, path=pointer(place.path, keyword)) from None


def count_of(place: Place, keyword: str) -> int:
    """The count that a keyword has: a whole number from 0 on."""
    value = place.schema[keyword]
    if type(value) is int and value >= 0:
        return value
    if is_number(value):
        number = number_of(place, keyword)
        if number >= 0 and number.denominator == 1:
            return int(number)
    message = f"`{keyword}` must be a whole number from 0 on, not {value!r:.100}"
    raise SchemaError(message, path=pointer(place.path, keyword))


def names_of(value: object, place: Place, keyword: str) -> Sequence[str]:
    """The list of strings that a keyword has."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        message = f"`{keyword}` must be a list of strings, not {value!r:.100}"
        raise SchemaError(message, path=pointer(place.path, keyword))
    return value


def node_of_values(table: Table, values: Sequence[Any], path: str) -> Node:
    """Exactly these values, as JSON Schema compares them: 1 and 1.0 are equal, 1 and true are not."""
    strings = [value for value in values if isinstance(value, str)]
    booleans = frozenset(value for value in values if isinstance(value, bool))
    try:
        numbers = unite(point(exact(value)) for value in values if is_number(value))
    except (ValueError, OverflowError):
        raise SchemaError("a number is not finite", path=path) from None
    arrays = {}
    objects = {}
    for value in values:
        if isinstance(value, list):
            prefix = tuple(id_of_value(table, item, path) for item in value)
            arrays[prefix] = ArrayNode(prefix, NEVER, len(prefix), len(prefix))
        elif isinstance(value, dict):
            properties = {name: id_of_value(table, item, path) for name, item in value.items()}
            objects[frozenset(properties.items())] = ObjectNode(
                properties, frozenset(properties), (), len(properties), len(properties)
            )
        elif not (value is None or isinstance(value, (bool, str)) or is_number(value)):
            raise SchemaError(f"{value!r:.100} is no JSON value", path=path)
    return Node(
        any(value is None for value in values),
        booleans,
        numbers,
        _language(strings, path),
        tuple(arrays.values()),
        tuple(objects.values()),
        path,
    )


def _language(strings: list[str], path: str) -> Language | None:
    if not strings:
        return None
    for text in strings:
        check_text(text, path, "enum")
    return Language.of_strings(strings)


def check_text(text: str, path: str, keyword: str) -> None:
    """Raises UnsupportedSchemaError where a string holds half a surrogate pair: no UTF-8 text has that."""
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        message = f"{text!r:.100} holds half a surrogate pair"
        raise UnsupportedSchemaError(message, path=path, keyword=keyword)


def id_of_value(table: Table, value: Any, path: str) -> int:
    """The id of the shape of one value; equal values have one id."""
    return table.define(("value", _key(value)), lambda: node_of_values(table, [value], path))


def _key(value: Any) -> object:
    if isinstance(value, list):
        return ("array", *(_key(item) for item in value))
    if isinstance(value, dict):
        return ("object", frozenset((name, _key(item)) for name, item in value.items()))
    if is_number(value):
        try:
            return ("number", exact(value))
        except (ValueError, OverflowError):
            return ("number", repr(value))
    return (type(value).__name__, value if value.__hash__ else repr(value))

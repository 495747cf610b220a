"""Schemas with labelled instances, and the texts of these; what is done with them it does not know."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_DEPTH = 12  # of references and alternatives that are looked into for an order of keys


@dataclass(frozen=True)
class Case:
    """A schema and instances, each with whether it is valid."""

    name: str
    schema: Any
    instances: tuple[tuple[bool, Any], ...]


def read_cases(path: str | Path) -> list[Case]:
    """The cases of a file: a JSON object a line, with `name`, `schema` and `tests`, a list of {`valid`, `data`}."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return [
        Case(
            str(row.get("name", number)),
            row["schema"],
            tuple((bool(test["valid"]), test["data"]) for test in row["tests"]),
        )
        for number, row in enumerate(rows)
    ]


def compact(value: Any) -> str | None:
    """A value's JSON text without blanks; None where it has none in UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def in_declared_order(value: Any, schema: Any) -> Any:
    """The value with the keys of its objects as the schema declares them, undeclared ones last."""
    return _ordered(value, [schema], schema)


def accepted_order(value: Any, takes: Callable[[str], bool], most: int) -> str | None:
    """A text of the value with its keys in an order such that `takes` takes every beginning of it that is tried; None
    where there is none, or none is found by asking `most` times."""
    asked = 0

    def is_taken(text: str) -> bool:
        nonlocal asked
        asked += 1
        return asked <= most and takes(text)

    def after(part: Any, before: str) -> Iterator[str]:
        if isinstance(part, dict):
            yield from after_members(part, before, "{")
        elif isinstance(part, list):
            yield from after_items(part, before, "[")
        else:
            text = before + json.dumps(part, ensure_ascii=False)
            if is_taken(text):
                yield text

    def after_members(rest: dict[str, Any], before: str, mark: str) -> Iterator[str]:
        if not rest:
            yield before + ("{}" if mark == "{" else "}")
        for name, part in rest.items():
            begun = f"{before}{mark}{json.dumps(name, ensure_ascii=False)}:"
            others = {other: rest[other] for other in rest if other != name}
            for text in after(part, begun) if is_taken(begun) else ():
                yield from after_members(others, text, ",")

    def after_items(rest: list[Any], before: str, mark: str) -> Iterator[str]:
        if not rest:
            yield before + ("[]" if mark == "[" else "]")
            return
        for text in after(rest[0], before + mark):
            yield from after_items(rest[1:], text, ",")

    return next(filter(is_taken, after(value, "")), None)


def _ordered(value: Any, schemas: list[Any], root: Any) -> Any:
    parts = [part for schema in schemas for part in _applied(schema, root, 0)]
    if isinstance(value, list):
        return [_ordered(item, _of_item(parts, place), root) for place, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    declared: dict[str, list[Any]] = {}
    for part in parts:
        for name, schema in _properties(part):
            declared.setdefault(name, []).append(schema)
    names = [name for name in declared if name in value] + [name for name in value if name not in declared]
    return {name: _ordered(value[name], declared.get(name) or _of_other_name(parts, name), root) for name in names}


def _of_other_name(parts: list[dict[str, Any]], name: str) -> list[Any]:
    found = [part["additionalProperties"] for part in parts if "additionalProperties" in part]
    for part in parts:
        patterns = part.get("patternProperties")
        if isinstance(patterns, dict):
            found += [schema for pattern, schema in patterns.items() if _is_found(pattern, name)]
    return found


def _is_found(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def _properties(part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    properties, required = part.get("properties"), part.get("required")
    if isinstance(properties, dict):
        yield from properties.items()
    if isinstance(required, list):
        yield from ((name, True) for name in required if isinstance(name, str))


def _of_item(parts: list[dict[str, Any]], place: int) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        for keyword in ("prefixItems", "items", "additionalItems"):
            schemas = part.get(keyword)
            found += schemas[place : place + 1] if isinstance(schemas, list) else [schemas]
    return found


def _applied(schema: Any, root: Any, depth: int) -> Iterator[dict[str, Any]]:
    """The objects that a schema is made of: itself and what it combines or refers to."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return
    yield schema
    for keyword, body in schema.items():
        if keyword in ("allOf", "anyOf", "oneOf") and isinstance(body, list):
            for part in body:
                yield from _applied(part, root, depth + 1)
        elif keyword in ("if", "then", "else"):
            yield from _applied(body, root, depth + 1)
        elif keyword == "$ref":
            yield from _applied(_referred(body, root), root, depth + 1)


def _referred(reference: Any, root: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node

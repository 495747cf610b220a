"""The functions that a Go template may call: Go's own and Ollama's; it knows nothing of how arguments are evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

from localllm.chat.go import comparison
from localllm.chat.go.formatting import sprint, sprintf, sprintln
from localllm.chat.go.json_text import go_json
from localllm.chat.go.values import (
    Alternatives,
    CallError,
    Record,
    TypedList,
    TypedMap,
    element,
    from_bytes,
    in_bytes,
    is_true,
    kind,
    plain,
    type_name,
)

DATE = "%Y-%m-%d"

_HTML = {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
_JS = {"\\": "\\\\", "'": "\\'", '"': '\\"'}
_HTML_SPECIAL = re.compile("[\0\"'&<>]")
_JS_SPECIAL = re.compile(r"""[\\'"<>&=\x00-\x1f]|[^\x00-\x7f]""")
_TYPESCRIPT = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "array": "any[]",
    "object": "Record<string, any>",
    "null": "null",
}


@dataclass(frozen=True)
class GoFunction:
    """What is called, with how many arguments (`n_most` None: any number), and which of them must be strings:
    "" for none, "first", "all"."""

    call: Callable[..., Any]
    n_least: int
    n_most: int | None
    strings: str = ""

    def wants_string(self, position: int) -> bool:
        return self.strings == "all" or (self.strings == "first" and position == 0)


def index(item: Any, *keys: Any) -> Any:
    """An element of a string, slice or map, and of that, and so on. Raises: CallError."""
    item = plain(item)
    if item is None:
        raise CallError("index of untyped nil")
    for key in map(plain, keys):
        if item is None:
            raise CallError("index of nil pointer")
        item = plain(_indexed(item, key))
    return element(item)


def _indexed(item: Any, key: Any) -> Any:
    if isinstance(item, str | list):
        values = in_bytes(item) if isinstance(item, str) else item
        position = _position(key, len(values))
        if position == len(values):
            raise CallError(f"reflect: {kind(item)} index out of range")
        return values[position]
    if isinstance(item, dict):
        if not isinstance(key, str):
            expected = f"value has type {type_name(key)}; should be string"
            raise CallError("value is nil; should be of type string" if key is None else expected)
        return item.get(key, item.missing() if isinstance(item, TypedMap) else None)
    raise CallError(f"can't index item of type {type_name(item)}")


def _position(key: Any, most: int) -> int:
    if kind(key) != "int":
        what = "nil" if key is None else f"type {type_name(key)}"
        raise CallError(f"cannot index slice/array with {what}")
    if not 0 <= key <= most:
        raise CallError(f"index out of range: {key}")
    return int(key)


def sliced(item: Any, *bounds: Any) -> Any:
    """A part of a string (in bytes) or slice. Raises: CallError."""
    item = plain(item)
    if item is None:
        raise CallError("slice of untyped nil")
    if len(bounds) > 3:
        raise CallError(f"too many slice indexes: {len(bounds)}")
    if not isinstance(item, str | list):
        raise CallError(f"can't slice item of type {type_name(item)}")
    if isinstance(item, str) and len(bounds) == 3:
        raise CallError("cannot 3-index slice a string")
    values: Any = in_bytes(item) if isinstance(item, str) else item
    given = [_position(plain(bound), len(values)) for bound in bounds]
    start, end, *capacity = [*given, *[0, len(values)][len(given) :]]
    for low, high in ((start, end), *((end, most) for most in capacity)):
        if low > high:
            raise CallError(f"invalid slice index: {low} > {high}")
    part = values[start:end]
    if isinstance(part, bytes):
        return from_bytes(part)
    return TypedList(part, item.go_type, item.is_json) if isinstance(item, TypedList) else part


def length(item: Any) -> int:
    """Bytes of a string, elements of a slice or map. Raises: CallError."""
    if isinstance(item, str):
        return len(item) if item.isascii() else len(in_bytes(item))
    if isinstance(item, list | dict):
        return len(item)
    if item is None:
        raise CallError("reflect: call of reflect.Value.Type on zero Value")
    raise CallError("len of nil pointer" if plain(item) is None else f"len of type {type_name(item)}")


def call(name: str, function: Any, *_: Any) -> Any:
    """No value of a conversation can be called. Raises: CallError."""
    function = plain(function)
    raise CallError("call of nil" if function is None else f"non-function {name} of type {type_name(function)}")


def html(*values: Any) -> str:
    return _HTML_SPECIAL.sub(lambda match: _HTML[match[0]], _joined(values))


def js(*values: Any) -> str:
    return _JS_SPECIAL.sub(lambda match: _js_escape(match[0]), _joined(values))


def _js_escape(char: str) -> str:
    if char in _JS:
        return _JS[char]
    if char in "<>&=" or ord(char) < 0x20:
        return f"\\u{ord(char):04X}"
    return char if char.isprintable() else f"\\u{ord(char):04X}"


def urlquery(*values: Any) -> str:
    return quote_plus(in_bytes(_joined(values)), safe="~")


def _joined(values: tuple[Any, ...]) -> str:
    """As `print`, except that nothing at all is told as the engine prints it."""
    return sprint(["<no value>" if plain(value) is None else value for value in values])


def typescript_type(value: Any) -> str:
    """TypeScript's word for the type of a tool's property; "any" for whatever else."""
    if not isinstance(value, Record) or value.go_type != "api.ToolProperty":
        return "any"
    if alternatives := value.values["AnyOf"]:
        return " | ".join(map(typescript_type, alternatives))
    words: Alternatives = value.values["Type"]
    return " | ".join(_TYPESCRIPT.get(word, "any") for word in words) or "any"


def functions_at(now: Callable[[], datetime]) -> dict[str, GoFunction]:
    """All of them by name; `and` and `or` are evaluated by the engine, since they may leave arguments alone."""
    return {
        "and": GoFunction(lambda *values: values[-1], 1, None),
        "or": GoFunction(lambda *values: values[-1], 1, None),
        "not": GoFunction(lambda value: not is_true(plain(value)), 1, 1),
        "eq": GoFunction(comparison.equal, 1, None),
        "ne": GoFunction(comparison.not_equal, 2, 2),
        "lt": GoFunction(comparison.less, 2, 2),
        "le": GoFunction(comparison.less_or_equal, 2, 2),
        "gt": GoFunction(comparison.greater, 2, 2),
        "ge": GoFunction(comparison.greater_or_equal, 2, 2),
        "len": GoFunction(length, 1, 1),
        "index": GoFunction(index, 1, None),
        "slice": GoFunction(sliced, 1, None),
        "print": GoFunction(lambda *values: sprint(list(values)), 0, None),
        "println": GoFunction(lambda *values: sprintln(list(values)), 0, None),
        "printf": GoFunction(lambda form, *values: sprintf(form, list(values)), 1, None, "first"),
        "html": GoFunction(html, 0, None),
        "js": GoFunction(js, 0, None),
        "urlquery": GoFunction(urlquery, 0, None),
        "call": GoFunction(call, 1, None),
        "json": GoFunction(go_json, 1, 1),
        "currentDate": GoFunction(lambda *_: now().strftime(DATE), 0, None, "all"),
        "yesterdayDate": GoFunction(lambda *_: (now() - timedelta(days=1)).strftime(DATE), 0, None, "all"),
        "toTypeScriptType": GoFunction(typescript_type, 1, 1),
    }

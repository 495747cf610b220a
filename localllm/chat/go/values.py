"""The values of a Go template as Python's: kinds, names of types, truth; it knows nothing of messages or printing.

bool, int, float, complex, str, list and dict stand for Go's own. Text counts in bytes of UTF-8; a lone surrogate is a
byte that is none. None is Go's invalid value; NIL is an interface that holds nothing, such as a null in a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final


class CallError(Exception):
    """A function of a template refused its arguments; the message is Go's."""


class Nil:
    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "NIL"


NIL: Final = Nil()


class Record:
    """A struct: values by Go's names of its fields, and the names under which JSON shows them.

    `tags` lists (field, name in JSON, is left out where empty). A record with `is_json` prints as JSON.
    """

    __slots__ = ("go_type", "is_json", "methods", "tags", "values")

    def __init__(
        self,
        go_type: str,
        values: dict[str, Any],
        tags: tuple[tuple[str, str, bool], ...] = (),
        is_json: bool = False,
        methods: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        self.go_type = go_type
        self.values = values
        self.tags = tags or tuple((name, name, False) for name in values)
        self.is_json = is_json
        self.methods = methods or {}


class TypedList(list[Any]):
    """A slice with a type of its own; one with `is_json` prints as JSON."""

    def __init__(self, items: Any, go_type: str, is_json: bool = False) -> None:
        super().__init__(items)
        self.go_type = go_type
        self.is_json = is_json


class Alternatives(TypedList):
    """The type of a property: one word, or several of which any will do."""

    def __init__(self, words: list[str]) -> None:
        super().__init__(words, "api.PropertyType")

    def __str__(self) -> str:
        return self[0] if len(self) == 1 else f"[{' '.join(self)}]" if self else ""


class TypedMap(dict[str, Any]):
    """A map with a type of its own, printed as JSON; `missing` makes what a key that is not there gives."""

    def __init__(self, items: Mapping[str, Any], go_type: str, missing: Callable[[], Any], is_sorted: bool = True):
        super().__init__(items)
        self.go_type = go_type
        self.missing = missing
        self.is_sorted = is_sorted


def element(value: Any) -> Any:
    """What a list or map gives for what it holds."""
    return NIL if value is None else value


def plain(value: Any) -> Any:
    """What an interface holds."""
    return None if value is NIL else value


def kind(value: Any) -> str:
    """ "invalid", "bool", "int", "float", "complex", "string", "slice", "map" or "struct"."""
    if value is None or value is NIL:
        return "invalid"
    if isinstance(value, bool):
        return "bool"
    for python, name in ((int, "int"), (float, "float"), (complex, "complex"), (str, "string"), (list, "slice")):
        if isinstance(value, python):
            return name
    return "map" if isinstance(value, dict) else "struct"


_TYPE_NAMES = {
    "invalid": "interface {}",
    "float": "float64",
    "complex": "complex128",
    "slice": "[]interface {}",
    "map": "map[string]interface {}",
}


def type_name(value: Any) -> str:
    """Go's name of a value's type, for messages."""
    if isinstance(value, Record | TypedList | TypedMap):
        return value.go_type
    name = kind(value)
    return _TYPE_NAMES.get(name, name)


def is_true(value: Any) -> bool:
    """Truth as `if` sees it: a struct is always true."""
    return isinstance(value, Record) or bool(value)


def in_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def from_bytes(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")

"""The tools that a request declares: which names may be called, and what their schemas say of a value written as text.

It knows nothing of how calls are written.
"""

from __future__ import annotations

from typing import Any

from localllm.chat.parts import ToolCall
from localllm.chat.tools.json_text import Spans, parsed
from localllm.chat.tools.tail import Tail, json_ends

_PREFIXES = ("functions.", "tools.")
_BOOLEANS = {"true": True, "false": False}


class Progress:
    """How far a syntax has read text that grows, so that nothing is read again with every token."""

    def __init__(self) -> None:
        self._reader: object = None
        self._text = ""
        self._reached: Any = None

    def take(self, reader: object, text: str, start: Any) -> Any:
        """What was kept last, where it is this reader's and of this text's beginning, else `start`."""
        is_same = reader is self._reader and text.startswith(self._text)
        self._reader = None
        return self._reached if is_same else start

    def keep(self, reader: object, text: str, reached: Any) -> None:
        """Go on from what was reached where the same text comes again with more behind it."""
        self._reader, self._text, self._reached = reader, text, reached


class Tools:
    """Looks names and properties up in a request's `tools` (function objects, in OpenAI's shape or bare).

    `spans` finds the ends of JSON in the answer, `progress` is for other syntaxes, `tail` for an answer that begins
    many calls: they are kept here because this lives as long as one answer.
    """

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        self.spans = Spans()
        self.progress = Progress()
        self.tail = Tail()
        functions = [tool.get("function") or tool for tool in tools]
        self._schemas = {str(f.get("name")): f.get("parameters") or {} for f in functions if f.get("name")}

    def name(self, text: str) -> str | None:
        """The tool that is meant, None for an unknown one. Some models write a namespace before the name."""
        text = text.strip()
        if text in self._schemas:
            return text
        bare = next((text[len(p) :] for p in _PREFIXES if text.startswith(p)), text)
        return bare if bare in self._schemas else None

    def call(self, name: Any, arguments: Any, call_id: Any = None) -> ToolCall | None:
        """The call, None for an unknown name or arguments that are no object (nor the JSON text of one)."""
        known = self.name(name) if isinstance(name, str) else None
        if isinstance(arguments, str):
            arguments = parsed(arguments) if arguments.strip() else {}
        if known is None or not isinstance(arguments, dict):
            return None
        return ToolCall(known, arguments, call_id if isinstance(call_id, str) and call_id else None)

    def json_end(self, text: str, start: int, is_end: bool) -> int | None:
        """Where the object or list that begins at `start` ends (one past it); None if it does not, or not yet."""
        if not is_end:
            return self.spans.end(text, start)
        ends, n = self.tail.fact(json_ends, text, json_ends)
        end: int | None = ends.get(start + n)
        return None if end is None else end - n

    def properties(self, name: str) -> list[str]:
        """The names of a tool's parameters, in order."""
        return list(self._properties(name))

    def value(self, name: str, key: str, text: str) -> Any:
        """A value written as plain text: JSON where the schema does not ask for a string, else the text itself."""
        kinds = kinds_of(self._properties(self.name(name) or "").get(key))
        bare = text.strip()
        if "null" in kinds and bare == "null":
            return None
        if "string" in kinds:
            return text
        if "boolean" in kinds and bare.lower() in _BOOLEANS:
            return _BOOLEANS[bare.lower()]
        value = parsed(bare)
        return text if value is None and bare != "null" else value

    def _properties(self, name: str) -> dict[str, Any]:
        schema = self._schemas.get(name) or {}
        properties = schema.get("properties") if isinstance(schema, dict) else None
        return properties if isinstance(properties, dict) else {}


def kinds_of(schema: Any) -> set[str]:
    """The JSON types a schema allows, as far as it names them."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    for key in ("anyOf", "oneOf"):
        for part in schema.get(key) or []:
            kinds |= kinds_of(part)
    if not kinds and "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
        kinds = {"string"}
    return kinds

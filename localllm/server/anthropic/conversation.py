"""Anthropic's messages, made of typed blocks, as native ones; it knows nothing of the rest of a request.

A message is read block by block: texts of one turn are joined, and each tool's result becomes a message of its own.
Whatever cannot be given to a model is refused, with the path to it.
"""

import json
from typing import Any

from localllm.server.errors import APIError

Message = dict[str, Any]

BETWEEN_TEXTS = "\n"
ROLES = ("user", "assistant", "system")
ERROR_PREFIX = "Error: "
# Reasoning that only its maker can read, and marks that say nothing to a model.
_SKIPPED = frozenset(("redacted_thinking", "tool_reference"))


def refuse(path: str, expected: str, value: Any) -> APIError:
    """The error for a value that is not what it must be."""
    shown = json.dumps(value, ensure_ascii=False)
    return APIError(400, f"{path}: expected {expected}, not {shown[:100]}")


def system_text(system: Any) -> str:
    """The text of `system`: a string, or text blocks. Raises: APIError."""
    return "" if system is None else text_of(system, "system")


def native_messages(messages: list[Any]) -> list[Message]:
    """The conversation for a chat request. Raises: APIError with status 400."""
    names: dict[str, str] = {}
    result: list[Message] = []
    for number, message in enumerate(messages):
        path = f"messages.{number}"
        if not isinstance(message, dict):
            raise refuse(path, "an object", message)
        role = message.get("role")
        if role not in ROLES:
            raise refuse(f"{path}.role", '"user", "assistant" or "system"', role)
        reader = _Reader(role, names)
        reader.read(message.get("content"), f"{path}.content")
        result += reader.messages
    return result


def text_of(content: Any, path: str) -> str:
    """The text of a string or of a list of text blocks. Raises: APIError."""
    if isinstance(content, str):
        return content
    texts = []
    for place, block in _blocks(content, path):
        if block["type"] != "text":
            raise refuse(f"{place}.type", '"text"', block["type"])
        texts.append(_string(block, "text", place))
    return BETWEEN_TEXTS.join(texts)


class _Reader:
    """Turns the content of one message into `messages`; `names` remembers which tool each call was for."""

    def __init__(self, role: str, names: dict[str, str]) -> None:
        self.messages: list[Message] = []
        self._role = role
        self._names = names

    def read(self, content: Any, path: str) -> None:
        if isinstance(content, str):
            self._add_text(content)
            return
        for place, block in _blocks(content, path):
            self._block(block, place)
        if not self.messages:
            self._turn()

    def _block(self, block: dict[str, Any], path: str) -> None:
        kind = block["type"]
        if kind == "text":
            self._add_text(_string(block, "text", path))
        elif kind == "thinking":
            turn = self._turn()
            turn["thinking"] = turn.get("thinking", "") + _string(block, "thinking", path)
        elif kind == "image":
            self._turn().setdefault("images", []).append(_image(block, path))
        elif kind in ("document", "search_result"):
            self._add_text(_document(block, path))
        elif kind in ("tool_use", "server_tool_use"):
            self._add_call(block, path)
        elif kind.endswith("tool_result"):
            self._add_result(block, path)
        elif kind not in _SKIPPED:
            raise APIError(400, f"{path}.type: blocks of type {json.dumps(kind)} are not supported")

    def _turn(self) -> Message:
        """The message that blocks of this role are added to: a new one after a tool's result."""
        if not self.messages or self.messages[-1]["role"] != self._role:
            self.messages.append({"role": self._role, "content": ""})
        return self.messages[-1]

    def _add_text(self, text: str) -> None:
        turn = self._turn()
        turn["content"] = BETWEEN_TEXTS.join([turn["content"], text]) if turn["content"] else text

    def _add_call(self, block: dict[str, Any], path: str) -> None:
        identifier, name = _string(block, "id", path), _string(block, "name", path)
        arguments = block.get("input")
        if not isinstance(arguments, dict):
            raise refuse(f"{path}.input", "an object", arguments)
        self._names[identifier] = name
        calls = self._turn().setdefault("tool_calls", [])
        calls.append({"id": identifier, "function": {"index": len(calls), "name": name, "arguments": arguments}})

    def _add_result(self, block: dict[str, Any], path: str) -> None:
        identifier = _string(block, "tool_use_id", path)
        result = _Reader("tool", self._names)
        content = block.get("content")
        if block["type"] != "tool_result":
            content = json.dumps(content, ensure_ascii=False)
        if content is not None:
            result.read(content, f"{path}.content")
        turn = result.messages[0] if result.messages else {"role": "tool", "content": ""}
        if block.get("is_error"):
            turn["content"] = ERROR_PREFIX + turn["content"]
        turn["tool_call_id"] = identifier
        if identifier in self._names:
            turn["tool_name"] = self._names[identifier]
        self.messages.append(turn)


def _blocks(content: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """The blocks with the path to each; every one has a type."""
    if not isinstance(content, list):
        raise refuse(path, "a string or an array of blocks", content)
    placed = [(f"{path}.{number}", block) for number, block in enumerate(content)]
    for place, block in placed:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise refuse(place, "an object with a type", block)
    return placed


def _string(block: dict[str, Any], key: str, path: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise refuse(f"{path}.{key}", "a string", value)
    return value


def _image(block: dict[str, Any], path: str) -> str:
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        given = source.get("type") if isinstance(source, dict) else source
        raise refuse(f"{path}.source.type", '"base64": images are not fetched', given)
    return _string(source, "data", f"{path}.source")


def _document(block: dict[str, Any], path: str) -> str:
    """A document's or a search result's text, under its title."""
    if block["type"] == "search_result":
        text = text_of(block.get("content"), f"{path}.content")
    else:
        text = _source_text(block.get("source"), f"{path}.source")
    title = block.get("title")
    return f"{title}\n{text}" if isinstance(title, str) and title else text


def _source_text(source: Any, path: str) -> str:
    kind = source.get("type") if isinstance(source, dict) else source
    if kind == "text":
        return _string(source, "data", path)
    if kind == "content":
        return text_of(source.get("content"), f"{path}.content")
    raise refuse(f"{path}.type", '"text" or "content"', kind)

"""From the input items of a response to Ollama's messages; it knows nothing of events or of the request around them."""

from typing import Any

from localllm.server.openai.conversation import (
    BETWEEN_PARTS,
    Message,
    content_of,
    expect_object,
    native_call,
    role_of,
    text_of,
)
from localllm.server.openai.errors import InvalidRequestError, told

KINDS = ("message", "function_call", "function_call_output", "reasoning", "web_search_call")


def native_messages(value: Any, instructions: str) -> list[Message]:
    """The conversation that an `input` tells of: a text, or items. Raises: InvalidRequestError naming the place."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise InvalidRequestError("input", f"expected a string or an array of items, not {told(value)}")
    reader = _Reader()
    for i, item in enumerate(value):
        reader.read(expect_object(item, f"input[{i}]"), f"input[{i}]")
    first = [{"role": "system", "content": instructions}] if instructions else []
    return [*first, *reader.messages]


class _Reader:
    """Reasoning, text and calls of one answer are items of their own: here they become one message again."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._names: dict[str, str] = {}

    def read(self, item: dict[str, Any], place: str) -> None:
        """Add an item to the conversation."""
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item, place)
        elif kind == "function_call":
            self._call(item, place)
        elif kind == "function_call_output":
            self._output(item, place)
        elif kind == "reasoning":
            message = self._only_thought() or self._new_answer()
            message["thinking"] = message.get("thinking", "") + _reasoning(item, place)
        elif kind != "web_search_call":  # a search that was made elsewhere: what came of it is in the answer
            raise InvalidRequestError(f"{place}.type", f"expected one of {', '.join(KINDS)}, not {told(kind)}")

    def _message(self, item: dict[str, Any], place: str) -> None:
        role = role_of(item, place)
        content, images = content_of(item.get("content"), f"{place}.content")
        if role == "assistant":
            message = self._only_thought() or self._new_answer()
            message["content"] = content
        else:
            self.messages.append({"role": role, "content": content, "images": images})

    def _call(self, item: dict[str, Any], place: str) -> None:
        call = native_call(item, text_of(item, "call_id", place) or text_of(item, "id", place), place)
        self._names[call["id"]] = call["function"]["name"]
        is_answering = bool(self.messages) and self.messages[-1]["role"] == "assistant"
        message = self.messages[-1] if is_answering else self._new_answer()
        message.setdefault("tool_calls", []).append(call)

    def _output(self, item: dict[str, Any], place: str) -> None:
        call_id = text_of(item, "call_id", place)
        content, images = content_of(item.get("output"), f"{place}.output")
        name = self._names.get(call_id, "")
        self.messages.append(
            {"role": "tool", "content": content, "images": images, "tool_call_id": call_id, "tool_name": name}
        )

    def _only_thought(self) -> Message | None:
        """The last message, if it is the assistant's and nothing was said in it so far."""
        last = self.messages[-1] if self.messages else {"role": ""}
        has_spoken = bool(last.get("content") or last.get("tool_calls"))
        return last if last["role"] == "assistant" and not has_spoken else None

    def _new_answer(self) -> Message:
        self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _reasoning(item: dict[str, Any], place: str) -> str:
    """What was thought: as this server gives it in `encrypted_content`, else the texts of content or summary."""
    if text := text_of(item, "encrypted_content", place):
        return text
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list):
            raise InvalidRequestError(f"{place}.{name}", f"expected an array, not {told(parts)}")
        where = f"{place}.{name}"
        texts = [text_of(expect_object(part, f"{where}[{i}]"), "text", f"{where}[{i}]") for i, part in enumerate(parts)]
        if any(texts):
            return BETWEEN_PARTS.join(texts)
    return ""

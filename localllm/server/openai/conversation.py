"""From OpenAI's messages and content parts to Ollama's messages; it knows nothing of requests around them."""

import json
import re
from typing import Any, NoReturn

from localllm.server.openai.errors import InvalidRequestError, told

# Parts of one message are blocks of text, as messages of the same role are to Ollama's templates.
BETWEEN_PARTS = "\n\n"
ROLES = {"developer": "system"}
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
IMAGE_PARTS = ("image_url", "input_image")
_DATA_URI = re.compile(r"data:(?:image/(?:jpeg|jpg|png|webp))?;base64,")

Message = dict[str, Any]


def native_messages(items: list[Any]) -> list[Message]:
    """The messages of a chat. Raises: InvalidRequestError naming the place."""
    names: dict[str, str] = {}
    return [_message(item, f"messages[{i}]", names) for i, item in enumerate(items)]


def _message(item: Any, place: str, names: dict[str, str]) -> Message:
    """One message; `names` are the functions of the tool calls so far, by the calls' ids."""
    item = expect_object(item, place)
    message: Message = {"role": role_of(item, place)}
    message["tool_calls"] = _tool_calls(item.get("tool_calls"), f"{place}.tool_calls")
    names.update({call["id"]: call["function"]["name"] for call in message["tool_calls"]})
    message["thinking"] = text_of(item, "reasoning_content", place) or text_of(item, "reasoning", place)
    content = item.get("content")
    is_optional = message["role"] == "assistant" and bool(message["tool_calls"] or message["thinking"])
    if content is not None or not is_optional:
        message["content"], message["images"] = content_of(content, f"{place}.content")
    if message["role"] == "tool":
        message["tool_call_id"] = text_of(item, "tool_call_id", place)
        message["tool_name"] = text_of(item, "name", place) or names.get(message["tool_call_id"], "")
    return message


def role_of(item: dict[str, Any], place: str) -> str:
    """A message's role. Raises: InvalidRequestError."""
    role = text_of(item, "role", place).lower()
    if not role:
        raise InvalidRequestError(f"{place}.role", "is required")
    return ROLES.get(role, role)


def content_of(content: Any, place: str) -> tuple[str, list[str]]:
    """The text and the images (base64) of a message's content, a string or an array of parts.

    Raises: InvalidRequestError.
    """
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise InvalidRequestError(place, f"expected a string or an array of parts, not {told(content)}")
    texts, images = [], []
    for i, item in enumerate(content):
        part = expect_object(item, f"{place}[{i}]")
        kind = part.get("type")
        if isinstance(kind, str) and kind in TEXT_PARTS:
            texts.append(text_of(part, TEXT_PARTS[kind], f"{place}[{i}]"))
        elif kind in IMAGE_PARTS:
            images.append(_image(part.get("image_url"), f"{place}[{i}].image_url"))
        else:
            _refuse_part(kind, f"{place}[{i}].type")
    return BETWEEN_PARTS.join(texts), images


def _refuse_part(kind: Any, place: str) -> NoReturn:
    if kind == "input_audio":
        raise InvalidRequestError(place, "audio input is not supported")
    raise InvalidRequestError(place, f"expected text or image_url, not {told(kind)}")


def _image(value: Any, place: str) -> str:
    """The base64 text of an image given as a data URI."""
    url = value.get("url") if isinstance(value, dict) else value
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        text = "image URLs are not currently supported, please use base64 encoded data instead"
        raise InvalidRequestError(place, text)
    start = _DATA_URI.match(url) if isinstance(url, str) else None
    if start is None:
        raise InvalidRequestError(place, "invalid image input", hint="data:image/png;base64,… or jpeg or webp")
    return str(url)[start.end() :]


def _tool_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise InvalidRequestError(place, f"expected an array, not {told(calls)}")
    return [_tool_call(call, f"{place}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: Any, place: str) -> dict[str, Any]:
    call = expect_object(call, place)
    function = expect_object(call.get("function"), f"{place}.function")
    return native_call(function, text_of(call, "id", place), f"{place}.function")


def native_call(function: dict[str, Any], call_id: str, place: str) -> dict[str, Any]:
    """A tool call, whose `function` has a name and arguments as text. Raises: InvalidRequestError."""
    name = text_of(function, "name", place)
    if not name:
        raise InvalidRequestError(f"{place}.name", "is required")
    arguments = _arguments(function.get("arguments"), f"{place}.arguments")
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def _arguments(value: Any, place: str) -> dict[str, Any]:
    """The arguments of a call: the JSON text of an object (or nothing); an object itself is taken too."""
    if isinstance(value, dict):
        return value
    if value is None or value == "":
        return {}
    try:
        parsed = json.loads(value, parse_constant=_refuse_constant) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        text = f"invalid tool call arguments: expected the JSON text of an object, not {told(value)}"
        raise InvalidRequestError(place, text)
    return parsed


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def expect_object(value: Any, place: str) -> dict[str, Any]:
    """The value, if it is an object. Raises: InvalidRequestError."""
    if not isinstance(value, dict):
        raise InvalidRequestError(place, f"expected an object, not {told(value)}")
    return value


def text_of(item: dict[str, Any], name: str, place: str) -> str:
    """A field that is a string, or absent. Raises: InvalidRequestError."""
    value = item.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequestError(f"{place}.{name}", f"expected a string, not {told(value)}")
    return value or ""

"""Messages and tools in the shape that templates expect; it knows nothing of any one template.

Every function leaves its argument unchanged.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from localllm.chat.call_texts import WriteCalls

Message = dict[str, Any]

BETWEEN_TURNS = "\n\n"
# Mistral's templates insist on ids of nine letters and digits.
CALL_ID = "call{:05d}"


def normalised(messages: list[Message]) -> list[Message]:
    """Roles in use, content as one string, thinking under each of its names, arguments as objects, calls with ids."""
    result = [_message(message) for message in messages]
    _give_ids(result, keep=True)
    return result


def _message(message: Message) -> Message:
    result = {key: copy.deepcopy(value) for key, value in message.items() if value is not None}
    result["role"] = {"developer": "system"}.get(str(result.get("role", "user")), str(result.get("role", "user")))
    result["content"] = flattened(result.get("content"))
    if thinking := result.pop("thinking", None) or result.get("reasoning_content"):
        result["thinking"] = result["reasoning_content"] = thinking
    if "tool_name" in result:
        result.setdefault("name", result["tool_name"])
    calls = [_call(call) for call in result.pop("tool_calls", [])]
    return {**result, "tool_calls": calls} if calls else result


def flattened(content: Any) -> str:
    """The text of a content that may be None, a string, or a list of typed parts."""
    if isinstance(content, list):
        parts = (part.get("text", "") if isinstance(part, dict) else part for part in content)
        return "".join(str(part) for part in parts)
    return "" if content is None else str(content)


def _call(call: Message) -> Message:
    function = dict(call.get("function") or {})
    if isinstance(arguments := function.get("arguments"), str):
        function["arguments"] = _parsed(arguments)
    function.setdefault("arguments", {})
    function.pop("index", None)  # Ollama's number of the call, which templates would print
    return {"type": "function", **call, "function": function}


def _parsed(arguments: str) -> Any:
    """Arguments as an object; text that is no JSON object stays as it is."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _give_ids(messages: list[Message], keep: bool) -> None:
    """Number tool calls and match results to them; `keep` leaves the ids that are there."""
    number, renamed, pending = 0, {}, []  # type: int, dict[str, str], list[str]
    for message in messages:
        for call in message.get("tool_calls", []):
            given, number = call.get("id"), number + 1
            call["id"] = given if given and keep else CALL_ID.format(number - 1)
            pending.append(call["id"])
            if given:
                renamed[given] = call["id"]
        if message["role"] == "tool":
            given = message.get("tool_call_id")
            identifier = renamed.get(given or "", given) or (pending[0] if pending else CALL_ID.format(0))
            message["tool_call_id"] = identifier
            pending = [p for p in pending if p != identifier]


def with_short_ids(messages: list[Message]) -> list[Message]:
    result = copy.deepcopy(messages)
    _give_ids(result, keep=False)
    return result


def with_string_arguments(messages: list[Message]) -> list[Message]:
    """Arguments as JSON text, for templates that print them unchanged."""
    result = copy.deepcopy(messages)
    for message in result:
        for call in message.get("tool_calls", []):
            function = call["function"]
            if not isinstance(function["arguments"], str):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return result


def with_null_content(messages: list[Message]) -> list[Message]:
    """Content of None where there are only tool calls, for templates that look for that."""
    return [{**m, "content": m["content"] or None} if m.get("tool_calls") else m for m in messages]


def with_calls_as_text(messages: list[Message], write: WriteCalls) -> list[Message]:
    """Tool calls written into the content, for templates that would drop them."""
    return [_with_calls_as_text(m, write) if m.get("tool_calls") else m for m in messages]


def _with_calls_as_text(message: Message, write: WriteCalls) -> Message:
    text = write(message["tool_calls"])
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": content}


def with_results_as_user(messages: list[Message]) -> list[Message]:
    """Results of tools as user messages, for templates that know no role `tool`."""
    return [{"role": "user", "content": m["content"]} if m["role"] == "tool" else m for m in messages]


def with_system_folded(messages: list[Message]) -> list[Message]:
    """System texts put in front of the first user message (a user message of their own where there is none)."""
    texts = [m["content"] for m in messages if m["role"] == "system" and m["content"]]
    rest = [m for m in messages if m["role"] != "system"]
    if not texts:
        return rest
    first = next((i for i, m in enumerate(rest) if m["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": BETWEEN_TURNS.join(texts)}, *rest]
    content = BETWEEN_TURNS.join([*texts, rest[first]["content"]])
    return [*rest[:first], {**rest[first], "content": content}, *rest[first + 1 :]]


def with_turns_merged(messages: list[Message]) -> list[Message]:
    """Consecutive messages of one role made one; results of tools stay apart."""
    result: list[Message] = []
    for message in messages:
        if result and message["role"] == result[-1]["role"] and message["role"] != "tool":
            texts = [m["content"] for m in (result[-1], message) if m["content"]]
            calls = [*result[-1].get("tool_calls", []), *message.get("tool_calls", [])]
            merged = {**result[-1], **message, "content": BETWEEN_TURNS.join(texts)}
            result[-1] = {**merged, "tool_calls": calls} if calls else merged
        else:
            result.append(message)
    return result


def with_one_call_each(messages: list[Message]) -> list[Message]:
    """An answer of several calls as several answers, each followed by its result."""
    result: list[Message] = []
    rest = list(messages)
    while rest:
        answers = _single_calls(rest.pop(0))
        n_results = next((i for i, m in enumerate(rest) if m["role"] != "tool"), len(rest))
        results, rest = rest[:n_results], rest[n_results:]
        for answer in answers:
            identifiers = {call["id"] for call in answer.get("tool_calls", [])}
            own = [m for m in results if m.get("tool_call_id") in identifiers]
            results = [m for m in results if m not in own]
            result += [answer, *own]
        result += results
    return result


def _single_calls(message: Message) -> list[Message]:
    first, *others = message.get("tool_calls") or [None]
    if not others:
        return [message]
    rest = {key: value for key, value in message.items() if key not in ("thinking", "reasoning_content")}
    return [{**message, "tool_calls": [first]}, *({**rest, "content": "", "tool_calls": [call]} for call in others)]


def without_empty_answers(messages: list[Message]) -> list[Message]:
    return [m for m in messages if m["role"] != "assistant" or m["content"] or m.get("tool_calls")]


def with_descriptions(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools whose properties all have a description, if only an empty one."""
    result = copy.deepcopy(tools)
    for tool in result:
        properties = (tool.get("function", {}).get("parameters") or {}).get("properties") or {}
        for schema in properties.values():
            if isinstance(schema, dict):
                schema.setdefault("description", "")
    return result


def normalised_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools with `type`, and with parameters whose `type` is one word (templates call `upper` on it)."""
    result = copy.deepcopy(tools)
    for tool in result:
        tool.setdefault("type", "function")
        _single_types(tool.get("function", {}).get("parameters"))
    return result


def _single_types(schema: Any) -> None:
    """["string", "null"] becomes "string" and nullable, all the way down."""
    if isinstance(schema, list):
        for item in schema:
            _single_types(item)
    if not isinstance(schema, dict):
        return
    if isinstance(kinds := schema.get("type"), list):
        schema["type"] = next((kind for kind in kinds if kind != "null"), "null")
        if "null" in kinds:
            schema["nullable"] = True
    for value in schema.values():
        _single_types(value)

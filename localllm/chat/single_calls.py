"""Conversations for templates that know one tool call a message, and one text beside it; it renders nothing."""

from __future__ import annotations

from localllm.chat.conversation import BETWEEN_TURNS, Message


def has_several_calls(messages: list[Message]) -> bool:
    """Whether a message makes more than one call."""
    return any(len(message.get("tool_calls") or []) > 1 for message in messages)


def with_single_calls(messages: list[Message]) -> list[Message]:
    """Each call in a message of its own, followed by its result: the one with its id, else the next one."""
    result: list[Message] = []
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            result.append(message)
            continue
        results = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        result += _paired(message, results)
    return result


def _paired(message: Message, results: list[Message]) -> list[Message]:
    paired: list[Message] = []
    for i, call in enumerate(message["tool_calls"]):
        texts = message if i == 0 else {"role": message["role"], "content": ""}
        paired.append({**texts, "tool_calls": [call]})
        own = next((r for r in results if call.get("id") and r.get("tool_call_id") == call["id"]), None)
        own = own or next((r for r in results if not r.get("tool_call_id")), None)
        if own is not None:
            results.remove(own)
            paired.append(own)
    return [*paired, *results]


def with_one_text(messages: list[Message]) -> list[Message]:
    """What was said before a call joined to the thinking, for templates that refuse to write both."""
    return [_with_one_text(m) if m.get("tool_calls") and m.get("content") else m for m in messages]


def _with_one_text(message: Message) -> Message:
    thinking = message.get("thinking") or message.get("reasoning_content")
    if not thinking:
        return message
    joined = f"{thinking}{BETWEEN_TURNS}{message['content']}"
    return {**message, "content": "", "thinking": joined, "reasoning_content": joined}

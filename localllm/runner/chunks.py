"""From the parts of an answer to the messages that carry them; it knows nothing of tokens or syntax."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator
from itertools import count
from typing import Any

from localllm.chat import Part, Text, Thinking, ToolCall
from localllm.messages import Chunk

ID_CHARS = string.ascii_lowercase + string.digits
N_ID_CHARS = 8


class Chunks:
    """The chunks of one request, which numbers its calls from 0."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._numbers = count()

    def of(self, parts: list[Part], logprobs: list[dict[str, Any]]) -> Iterator[Chunk]:
        """Chunks in the order of the parts: thinking and text after it share one, calls have their own. The first one
        has the log-probabilities, which may come alone."""
        groups: list[dict[str, Any]] = []
        for part in parts:
            self._add(groups, part)
        for group in groups or [{}]:
            if group or logprobs:
                yield Chunk(self._request_id, **group, logprobs=logprobs)
            logprobs = []

    def _add(self, groups: list[dict[str, Any]], part: Part) -> None:
        last = groups[-1] if groups else {"text": "", "tool_calls": []}
        if isinstance(part, ToolCall):
            if "text" in last or "thinking" in last:
                groups.append({"tool_calls": []})
            groups[-1]["tool_calls"].append(self._call(part))
        elif isinstance(part, Thinking):
            groups.append({"thinking": part.text})
        elif isinstance(part, Text):
            if "text" in last or "tool_calls" in last:
                groups.append({})
            groups[-1]["text"] = part.text

    def _call(self, call: ToolCall) -> dict[str, Any]:
        function = {"index": next(self._numbers), "name": call.name, "arguments": call.arguments}
        return {"id": call.id or new_call_id(), "function": function}


def new_call_id() -> str:
    """`call_` and eight letters or digits by chance."""
    return "call_" + "".join(secrets.choice(ID_CHARS) for _ in range(N_ID_CHARS))

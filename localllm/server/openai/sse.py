"""How OpenAI's endpoints stream: server-sent events of JSON objects; it knows nothing of what they say."""

from localllm.server.openai.errors import fail, refuse
from localllm.server.streaming import Record, Wire, encoded

EVENT_STREAM = "text/event-stream"


def _data(record: Record) -> bytes:
    return b"data: " + encoded(record) + b"\n\n"


def _named(event: Record) -> bytes:
    return b"event: " + event["type"].encode() + b"\n" + _data(event)


DATA = Wire(EVENT_STREAM, _data, refuse, fail, b"data: [DONE]\n\n")
"""Events without names, `[DONE]` at the end."""

EVENTS = Wire(EVENT_STREAM, _named, refuse, fail)
"""Events named by their `type`; the last of them says how it ended."""

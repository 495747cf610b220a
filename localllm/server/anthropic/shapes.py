"""The shapes of answers, for the API's description; it knows nothing of how they are made."""

from localllm.server.binding import Int, List, Map, String, Struct

MESSAGE = Struct(
    "anthropic.Message",
    {
        **{name: String(default=None) for name in ("id", "type", "role", "model", "stop_reason", "stop_sequence")},
        "content": List(Map()),
        "usage": Map(),
        "truncated": Map(),
        "warnings": List(String()),
    },
)
TOKEN_COUNT = Struct("anthropic.MessageTokensCount", {"input_tokens": Int(default=None)})

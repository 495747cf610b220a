"""The shapes of answers under /v1, for the API's description; it knows nothing of how they are made."""

from localllm.server.binding import Anything, Int, List, Map, String, Struct, Type

MODEL = Struct(
    "openai.Model",
    {"id": String(), "object": String(), "created": Int(), "owned_by": String()},
)
MODELS = Struct("openai.ModelList", {"object": String(), "data": List(MODEL)})
USAGE = Struct(
    "openai.Usage",
    {
        "prompt_tokens": Int(),
        "completion_tokens": Int(),
        "total_tokens": Int(),
        "prompt_tokens_details": Map(),
        "completion_tokens_details": Map(),
    },
)
_HEAD: dict[str, Type] = {
    "id": String(),
    "object": String(),
    "created": Int(),
    "model": String(),
    "system_fingerprint": String(),
    "usage": USAGE,
    "truncated": Map(),
    "context_length": Int(default=None),
    "warnings": List(String()),
}
CHAT_COMPLETION = Struct(
    "openai.ChatCompletion",
    {
        **_HEAD,
        "choices": List(
            Struct(
                "openai.Choice", {"index": Int(), "message": Map(), "finish_reason": String(), "logprobs": Anything()}
            )
        ),
    },
)
COMPLETION = Struct(
    "openai.Completion",
    {
        **_HEAD,
        "choices": List(
            Struct(
                "openai.CompletionChoice",
                {"index": Int(), "text": String(), "finish_reason": String(), "logprobs": Anything()},
            )
        ),
    },
)
EMBEDDINGS = Struct(
    "openai.EmbeddingList",
    {
        "object": String(),
        "data": List(Struct("openai.Embedding", {"object": String(), "index": Int(), "embedding": Anything()})),
        "model": String(),
        "usage": Map(),
        "truncated": Map(),
    },
)
RESPONSE = Struct(
    "openai.Response",
    {
        "id": String(),
        "object": String(),
        "created_at": Int(),
        "status": String(),
        "error": Anything(),
        "incomplete_details": Anything(),
        "model": String(),
        "output": List(Map()),
        "truncated": Map(),
        "context_length": Int(default=None),
        "warnings": List(String()),
        "usage": Map(),
    },
)

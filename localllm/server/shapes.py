"""The shapes of answers to Ollama's endpoints, for the API's description; it knows nothing of how they are made.

Every field may be absent: which are there depends on the request.
"""

from localllm.server.binding import Anything, Bool, Int, List, Map, String, Struct, Type

_STATISTICS: dict[str, Type] = {
    name: Int(default=None)
    for name in (
        *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"),
        *("eval_count", "eval_duration", "prompt_eval_cached_count", "context_length"),
        *("draft_count", "draft_accepted_count"),
    )
}
_LAST: dict[str, Type] = {
    "done": Bool(default=None),
    "done_reason": String(default=None),
    "progress": Map(),
    "truncated": Map(),
    "warnings": List(String()),
    "logprobs": List(Map()),
    "_debug_info": Map(),
    **_STATISTICS,
}
_HEAD: dict[str, Type] = {"model": String(default=None), "created_at": String(default=None)}

GENERATE_ANSWER = Struct(
    "api.GenerateResponse",
    {
        **_HEAD,
        "response": String(default=None),
        "thinking": String(default=None),
        "tool_calls": List(Map()),
        "context": List(Int()),
        **_LAST,
    },
)
CHAT_ANSWER = Struct(
    "api.ChatResponse",
    {
        **_HEAD,
        "message": Struct(
            "api.Message",
            {
                "role": String(default=None),
                "content": String(default=None),
                "thinking": String(default=None),
                "tool_calls": List(Map()),
            },
        ),
        **_LAST,
    },
)
PROGRESS = Struct(
    "api.ProgressResponse",
    {
        "status": String(default=None),
        "digest": String(default=None),
        "total": Int(default=None),
        "completed": Int(default=None),
    },
)
VERSION = Struct("api.VersionResponse", {"version": String(default=None), "localllm": String(default=None)})
_MODEL = Struct(
    "api.ListModelResponse",
    {
        **{
            name: String(default=None)
            for name in ("name", "model", "modified_at", "digest", "expires_at", "kv_cache_type")
        },
        **{name: Int(default=None) for name in ("size", "size_vram", "context_length")},
        "details": Map(),
        "capabilities": List(String()),
    },
)
MODELS = Struct("api.ListResponse", {"models": List(_MODEL)})
SHOWN = Struct(
    "api.ShowResponse",
    {
        "modelfile": String(default=None),
        "parameters": String(default=None),
        "template": String(default=None),
        "system": String(default=None),
        "license": Anything(),
        "messages": List(Map()),
        "details": Map(),
        "model_info": Map(),
        "projector_info": Map(),
        "tensors": List(Map()),
        **{name: String(default=None) for name in ("renderer", "parser", "requires")},
        "capabilities": List(String()),
        "modified_at": String(default=None),
        "default_context_length": Int(default=None),
    },
)
TOKENS = Struct("api.TokenizeResponse", {"model": String(default=None), "tokens": List(Int())})
TEXT = Struct("api.DetokenizeResponse", {"model": String(default=None), "text": String(default=None)})

"""The shapes of answers under /v1, for the API's description; it knows nothing of how they are made."""

from localllm.server.binding import Int, List, String, Struct

MODEL = Struct(
    "openai.Model",
    {"id": String(), "object": String(), "created": Int(), "owned_by": String()},
)
MODELS = Struct("openai.ModelList", {"object": String(), "data": List(MODEL)})

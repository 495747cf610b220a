"""OpenAI's endpoints under /v1, translated at the edge into the requests that Ollama's make."""

from starlette.routing import Route

from localllm.server.openai import chat, completions, embeddings, models, responses
from localllm.server.openai.errors import refuse

__all__ = ["ROUTES", "refuse"]

ROUTES = (
    Route("/v1/chat/completions", chat.chat_completions, methods=["POST"]),
    Route("/v1/completions", completions.completions, methods=["POST"]),
    Route("/v1/embeddings", embeddings.embeddings, methods=["POST"]),
    Route("/v1/responses", responses.responses, methods=["POST"]),
    Route("/v1/models", models.models, methods=["GET"]),
    Route("/v1/models/{model:path}", models.model, methods=["GET"]),
)

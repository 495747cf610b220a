"""OpenAI's Responses API: items in, items out, and events that tell of them."""

from localllm.server.openai.responses.endpoint import RESPONSE_REQUEST, answer, responses

__all__ = ["RESPONSE_REQUEST", "answer", "responses"]

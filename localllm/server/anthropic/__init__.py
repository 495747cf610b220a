"""Anthropic's Messages API over the same generation path as the native endpoints; it knows nothing of prompts.

`request` and `conversation` turn what is asked into a native chat request, `events` turns its answer back.
"""

from localllm.server.anthropic.endpoints import ROUTES
from localllm.server.anthropic.errors import PREFIX, response_of

__all__ = ["PREFIX", "ROUTES", "response_of"]

"""GET / and /api/version: whether the daemon is there, and which."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from localllm import __version__
from localllm.server.describe import described
from localllm.server.shapes import VERSION
from localllm.server.streaming import json_response


@described("whether the daemon is there", media_type="text/plain")
async def root(request: Request) -> Response:
    """Liveness, in the words that Ollama's clients look for."""
    return PlainTextResponse("Ollama is running")


OLLAMA_VERSION = "0.33.0"
"""The version of Ollama whose API this is. Clients compare `version` with the first release that had what they need."""


@described("which version the daemon is", answer=VERSION)
async def version(request: Request) -> Response:
    """The version of the API, where Ollama's clients look for it, and that of this program."""
    return json_response({"version": OLLAMA_VERSION, "localllm": __version__})

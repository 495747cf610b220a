"""GET / and /api/version: whether the daemon is there, and which."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from localllm import __version__
from localllm.server.streaming import json_response


async def root(request: Request) -> Response:
    """Liveness, in the words that Ollama's clients look for."""
    return PlainTextResponse("Ollama is running")


async def version(request: Request) -> Response:
    """The version of this program."""
    return json_response({"version": __version__})

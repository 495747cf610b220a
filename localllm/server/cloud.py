"""/api/status, /api/me and /api/experimental: what needs an account or a network in Ollama, and is refused here.

It knows no network: everything runs on this machine.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from localllm.server.binding import Bool, List, Map, String, Struct
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.streaming import json_response

DISABLED = "ollama cloud is disabled: {} is unavailable"
REMOTE_MODEL = DISABLED.format("remote model")
"""What a request for a model that runs at ollama.com is told."""

STATUS_ANSWER = Struct(
    "api.StatusResponse", {"cloud": Struct("api.CloudStatus", {"disabled": Bool(default=None), "source": String()})}
)
RECOMMENDATIONS = Struct("api.ModelRecommendationsResponse", {"recommendations": List(Map())})


@described("that there is no cloud", answer=STATUS_ANSWER)
async def status(request: Request) -> Response:
    """The cloud is off, and no setting is the reason."""
    return json_response({"cloud": {"disabled": True, "source": "none"}})


@described("models that Ollama's clients may suggest: none", answer=RECOMMENDATIONS)
async def recommendations(request: Request) -> Response:
    """No model is recommended."""
    return json_response({"recommendations": []})


def _refusing(what: str) -> Callable[[Request], Awaitable[Response]]:
    @described(f"refused: {what} needs ollama.com", errors=(403,))
    async def refuse(request: Request) -> Response:
        raise APIError(403, DISABLED.format(what))

    return refuse


_ACCOUNT = _refusing("account")

ROUTES = (
    Route("/api/status", status, methods=["GET"]),
    Route("/api/me", _ACCOUNT, methods=["POST"]),
    Route("/api/signout", _ACCOUNT, methods=["POST"]),
    Route("/api/user/keys/{key}", _ACCOUNT, methods=["DELETE"]),
    Route("/api/experimental/web_search", _refusing("web search"), methods=["POST"]),
    Route("/api/experimental/web_fetch", _refusing("web fetch"), methods=["POST"]),
    Route("/api/experimental/model-recommendations", recommendations, methods=["GET"]),
)

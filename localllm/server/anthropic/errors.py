"""Errors as Anthropic tells them: an answer of their own, or an event in a stream; it knows no endpoint."""

import secrets
from typing import Any

from starlette.responses import JSONResponse

from localllm.errors import ContextLengthError
from localllm.server import errors

PREFIX = "/v1/messages"
REQUEST_ID_HEADER = "request-id"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
TOO_LONG_HINT = (
    'shorten the conversation, or send `"truncate": true`; where the model allows a longer context, '
    "options.num_ctx and LOCALLLM_CONTEXT_LENGTH set it"
)


def new_request_id() -> str:
    """The name of a request, for its answer's header and its errors."""
    return f"req_{secrets.token_hex(12)}"


def body_of(error: Exception, request_id: str) -> dict[str, Any]:
    """{"type": "error", "error": {"type", "message"}, "request_id"}, with "hint" beside the message where there is one.

    The text for a prompt that is too long is Anthropic's: clients shorten their conversation when they read it.
    """
    native = errors.body_of(error)
    if isinstance(error, ContextLengthError):
        native["error"] = _too_long(error.n_prompt, error.n_ctx)
        native["hint"] = TOO_LONG_HINT
    status = errors.status_of(error)
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    told = {"type": kind, "message": native["error"]}
    if "hint" in native:
        told["hint"] = native["hint"]
    return {"type": "error", "error": told, "request_id": request_id}


def _too_long(n_prompt: int, n_ctx: int) -> str:
    if n_prompt > n_ctx:
        return f"prompt is too long: {n_prompt} tokens > {n_ctx} maximum"
    return f"input length and `max_tokens` exceed context limit: {n_prompt} + 1 > {n_ctx}"


def response_of(error: Exception, request_id: str = "") -> JSONResponse:
    """The whole answer to a request that failed before anything was sent."""
    request_id = request_id or new_request_id()
    headers = {REQUEST_ID_HEADER: request_id}
    return JSONResponse(body_of(error, request_id), errors.status_of(error), headers)

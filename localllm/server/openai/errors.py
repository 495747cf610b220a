"""Errors in OpenAI's shape: as the whole answer, or as the last events of a stream; it knows no endpoint."""

import json
from typing import Any

from starlette.responses import JSONResponse, Response

from localllm.errors import ContextLengthError
from localllm.server import errors
from localllm.server.binding import BindError
from localllm.server.errors import APIError
from localllm.server.streaming import JSON, encoded

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class InvalidRequestError(APIError):
    """A request that says something wrong in the field `param`, a path such as `messages[0].content`."""

    def __init__(self, param: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(400, f"{param}: {message}", hint=hint)
        self.param = param


def told(value: Any) -> str:
    """A value in an error's text: a short text or number as it is, else its kind."""
    if isinstance(value, str) and len(value) <= 40:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"the number {value}"
    kinds = {str: "a string", bool: "a boolean", list: "an array", dict: "an object", type(None): "null"}
    return kinds[type(value)]


def body_of(error: Exception) -> dict[str, Any]:
    """{"error": {"message", "type", "param", "code"}}, with "hint" where there is one."""
    told = errors.body_of(error)
    hint = {"hint": told["hint"]} if "hint" in told else {}
    return {
        "error": {"message": told["error"], "type": _kind(error), "param": _param(error), "code": _code(error), **hint}
    }


def refuse(error: Exception) -> Response:
    """The whole answer to a request that failed before anything was sent."""
    return JSONResponse(body_of(error), errors.status_of(error), media_type=JSON)


def fail(error: Exception) -> bytes:
    """What a stream says of an error, as its end."""
    return b"data: " + encoded(body_of(error)) + b"\n\ndata: [DONE]\n\n"


def _kind(error: Exception) -> str:
    status = errors.status_of(error)
    return KINDS.get(status) or ("invalid_request_error" if status < 499 else "api_error")


def _param(error: Exception) -> str | None:
    if isinstance(error, InvalidRequestError):
        return error.param
    return error.path or None if isinstance(error, BindError) else None


def _code(error: Exception) -> str | None:
    return "context_length_exceeded" if isinstance(error, ContextLengthError) else None

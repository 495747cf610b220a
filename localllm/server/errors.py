"""From an exception to a status code and an error body, in one table; it knows no endpoint."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from localllm.errors import (
    AdapterError,
    ContextMemoryError,
    LocalLLMError,
    OptionError,
    RequestCanceledError,
    RequestError,
    ServerBusyError,
    TemplateError,
)
from localllm.server.binding import BindError, ContentEncodingError
from localllm.server.go_json import GoJSONError
from localllm.server.limits import BodyTooLargeError, BodyTooSlowError
from registry.errors import (
    BrokenModelError,
    InvalidDigestError,
    InvalidNameError,
    ModelNotFoundError,
    PullCanceledError,
    PushDeniedError,
    RegistryError,
)

logger = logging.getLogger(__name__)

Refusal = Callable[[Exception], Response]
Refusals = Sequence[tuple[str, Refusal]]
"""How errors are told below a path; the first prefix that fits counts."""


class APIError(Exception):
    """An answer with this status and text, whatever caused it."""

    def __init__(self, status: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.hint = hint


# The first class that fits counts. Ollama answers a bad option type and a template that refuses a conversation with
# 500; both are the client's to mend, so here they are 400.
STATUS: tuple[tuple[type[Exception], int], ...] = (
    (GoJSONError, 400),
    (BindError, 400),
    (ContentEncodingError, 415),
    (BodyTooLargeError, 413),
    (BodyTooSlowError, 408),
    (OptionError, 400),
    (AdapterError, 400),
    (RequestError, 400),
    (ContextMemoryError, 400),
    (TemplateError, 400),
    (InvalidNameError, 400),
    (InvalidDigestError, 400),
    (ModelNotFoundError, 404),
    (BrokenModelError, 404),
    (PushDeniedError, 403),
    (PullCanceledError, 499),
    (RequestCanceledError, 499),
    (ClientDisconnect, 499),
    (ServerBusyError, 503),
    (LocalLLMError, 500),
    (RegistryError, 500),
)


def status_of(error: Exception) -> int:
    """The HTTP status of an exception."""
    if isinstance(error, APIError):
        return error.status
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def body_of(error: Exception) -> dict[str, Any]:
    """{"error": text}, with "hint" where there is one. An exception nobody foresaw is logged and not quoted."""
    known = isinstance(error, (APIError, *(kind for kind, _ in STATUS)))
    if not known:
        logger.error("unexpected %s", type(error).__name__, exc_info=error)
    text = str(error) if known else f"internal error: {type(error).__name__}"
    body = {"error": text or type(error).__name__}
    hint = getattr(error, "hint", None)
    return {**body, "hint": hint} if hint else body


def response_of(error: Exception) -> JSONResponse:
    """The whole answer to a request that failed before anything was sent."""
    return JSONResponse(body_of(error), status_of(error), media_type="application/json; charset=utf-8")


def refusal(refusals: Refusals, path: str) -> Refusal:
    """How errors are told at a path."""
    return next(refuse for prefix, refuse in refusals if path.startswith(prefix))

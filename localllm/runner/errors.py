"""Exceptions as messages to the daemon; it knows nothing of what raised them."""

from __future__ import annotations

import logging

from kernels_cpu import KernelError
from localllm import errors
from localllm.errors import LocalLLMError, RunnerError
from localllm.messages import Error, Failed

logger = logging.getLogger(__name__)

FIELDS = ("n_prompt", "n_ctx")


def error_message(request_id: str, error: Exception) -> Error:
    """What the daemon is told of a request that failed."""
    text, kind, hint = _described(error)
    fields = {name: getattr(error, name) for name in FIELDS if hasattr(error, name)}
    return Error(request_id, text, kind, hint, fields)


def failed_message(error: Exception) -> Failed:
    """What the daemon is told of a model that could not be loaded."""
    return Failed(*_described(error))


def _described(error: Exception) -> tuple[str, str, str | None]:
    """Text, the name of the nearest class in localllm.errors, hint; what is not ours is logged with its traceback."""
    kind = next((c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c), None)
    if isinstance(error, LocalLLMError):
        return str(error), kind or RunnerError.__name__, error.hint
    if isinstance(error, KernelError):
        return str(error), RunnerError.__name__, None
    logger.error("internal error", exc_info=error)
    return f"internal error: {type(error).__name__}: {error}", RunnerError.__name__, None

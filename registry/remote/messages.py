"""What servers say of errors, made ours; it knows nothing of when they say it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from registry.errors import RemoteError, RemoteNotFoundError, UnreachableError

_MAX_DETAIL = 500


def error_of(response: httpx.Response) -> RemoteError:
    """The exception of an answer whose body has been read."""
    host = response.request.url.netloc.decode()
    kind = RemoteNotFoundError if response.status_code == 404 else RemoteError
    hint = None
    if response.status_code in (401, 403):
        hint = "the model may be private, or not exist: give a user name and password, or a token, for this host"
    error = kind(host, response.status_code, _detail(response), hint=hint)
    error.retry_after = response.headers.get("Retry-After")
    return error


def unreachable(url: httpx.URL, error: Exception) -> UnreachableError:
    """The exception of a request that got no whole answer."""
    reason = str(error) or type(error).__name__
    hint = None
    if "WRONG_VERSION_NUMBER" in reason.upper() or "RECORD_LAYER_FAILURE" in reason.upper():
        hint = f"a server that speaks no TLS is named http://{url.netloc.decode()}/…, with --insecure"
    elif "CERTIFICATE_VERIFY_FAILED" in reason.upper():
        hint = "--insecure skips the check of the certificate"
    return UnreachableError(url.netloc.decode(), reason, hint=hint)


def _detail(response: httpx.Response) -> str:
    """`message` of the first of OCI's errors, `error` as others write it, or the text."""
    text = response.text.strip()
    try:
        message = _message(json.loads(text))
    except (ValueError, RecursionError):
        message = "" if "<html" in text[:200].lower() or "<!doctype" in text[:200].lower() else text
    return (message or response.reason_phrase or "no message")[:_MAX_DETAIL]


def _message(document: Any) -> str:
    if not isinstance(document, dict):
        return ""
    errors = document.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        return str(errors[0].get("message") or errors[0].get("code") or "")
    return str(document.get("error") or document.get("message") or "")

"""Errors under /v1 have OpenAI's shape, whatever raised them."""

from collections.abc import Callable
from typing import Any

import pytest

from localllm.errors import ContextLengthError, RunnerError, ServerBusyError
from localllm.server.binding import BindError, Int, Place
from localllm.server.errors import APIError
from localllm.server.openai import errors

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", "/v1", 404), ("DELETE", "/v1/models", 405)],
)
async def test_unknown_paths_and_methods(running: Callable[..., Any], method: str, path: str, status: int) -> None:
    async with running() as r:
        response = await r.http.request(method, path)
    text = {404: "404 page not found", 405: "405 method not allowed"}[status]
    assert response.status_code == status
    error = response.json()["error"]
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert error == {"message": f"{text}: {method} {path}", "type": kind, "param": None, "code": None}
    assert (response.headers.get("allow") is not None) is (status == 405)


@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (errors.InvalidRequestError("n", "too many"), "invalid_request_error", "n", None),
        (APIError(404, "no"), "not_found_error", None, None),
        (APIError(401, "no"), "authentication_error", None, None),
        (APIError(403, "no"), "permission_error", None, None),
        (APIError(429, "no"), "rate_limit_error", None, None),
        (ContextLengthError("long", 9, 4), "invalid_request_error", None, "context_length_exceeded"),
        (BindError("no", "stop"), "invalid_request_error", "stop", None),
        (ServerBusyError("busy"), "api_error", None, None),
        (RunnerError("died"), "api_error", None, None),
        (ValueError("secret"), "api_error", None, None),
    ],
)
def test_kinds(error: Exception, kind: str, param: str | None, code: str | None) -> None:
    told = errors.body_of(error)["error"]
    assert (told["type"], told["param"], told["code"]) == (kind, param, code)
    assert "secret" not in told["message"]


def test_a_hint_travels_along() -> None:
    assert errors.body_of(APIError(404, "no", hint="localllm pull m"))["error"]["hint"] == "localllm pull m"


def test_a_wrong_type_names_the_field() -> None:
    with pytest.raises(BindError) as caught:
        Int().bind(1.5, Place("Request").field("n"))
    assert errors.body_of(caught.value)["error"]["param"] == "n"

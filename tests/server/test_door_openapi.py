"""The API's description: complete, true to what binds requests, and shown by a page that needs nothing else."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.routing import Route

from localllm.server.app import REFUSALS, ROUTES
from localllm.server.binding import Bool, Image, Int, Judged, List, Map, String, Struct
from localllm.server.describe import described, description_of
from localllm.server.openapi import dialect_of, document
from localllm.server.schema import schema_of

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_is_described(route: Route) -> None:
    about = description_of(route.endpoint)
    assert about is not None, f"{route.path}: decorate {route.endpoint.__qualname__} with @described"
    assert about.summary and not about.summary.endswith(".")


def test_a_route_without_a_description_is_an_error() -> None:
    async def endpoint(request: Any) -> None: ...

    with pytest.raises(LookupError, match="POST /x"):
        document([Route("/x", endpoint, methods=["POST"])], REFUSALS)


def test_operation_ids_are_unique() -> None:
    paths = document(ROUTES, REFUSALS)["paths"]
    ids = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def test_the_schema_of_what_binds() -> None:
    struct = Struct(
        "x",
        {
            "a": String(),
            "b": Bool(default=True),
            "c": List(Int()),
            "d": Map(),
            "e": Judged(str, shape={"type": ["string", "integer"]}),
            "f": List(Image()),
        },
    )
    fields = schema_of(struct)["properties"]
    assert fields["a"] == {"type": ["string", "null"]}
    assert fields["b"] == {"type": ["boolean", "null"], "default": True}
    assert fields["c"]["items"]["type"] == ["integer", "null"]
    assert fields["d"] == {"type": ["object", "null"]}
    assert fields["e"] == {"type": ["string", "integer", "null"]}
    assert fields["f"]["items"]["contentEncoding"] == "base64"


def test_an_operation() -> None:
    @described("x", body=Struct("x", {"a": Int()}), query={"limit": Int()}, errors=(404,))
    async def endpoint(request: Any) -> None: ...

    paths = document([Route("/v1/files/{id:path}", endpoint, methods=["POST"])], REFUSALS)["paths"]
    operation = paths["/v1/files/{id}"]["post"]
    assert [(p["name"], p["in"]) for p in operation["parameters"]] == [("id", "path"), ("limit", "query")]
    assert set(operation["responses"]) == {"200", "400", "401", "403", "404", "408", "413", "415"}
    assert operation["tags"] == ["OpenAI"]


def test_answers_that_may_tell_of_losses_have_the_header() -> None:
    paths = document(ROUTES, REFUSALS)["paths"]
    told = {
        path
        for path, methods in paths.items()
        if "headers" in methods.get("post", {}).get("responses", {}).get("200", {})
    }
    assert {"/api/generate", "/api/chat", "/api/embed", "/v1/chat/completions", "/v1/responses", "/v1/messages"} <= told
    assert "/api/show" not in told


def test_dialects() -> None:
    assert [dialect_of(path) for path in ("/api/chat", "/v1/chat/completions", "/v1/messages/count_tokens")] == [
        *("Ollama", "OpenAI", "Anthropic")
    ]


async def test_the_document_and_its_page(running: Running) -> None:
    async with running() as r:
        api = (await r.http.get("/openapi.json")).json()
        assert api["openapi"] == "3.1.0" and "/api/chat" in api["paths"]
        messages = api["paths"]["/api/chat"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert messages["properties"]["messages"]["items"]["properties"]["content"] == {"type": ["string", "null"]}
        page = await r.http.get("/docs")
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        # Nothing is fetched from elsewhere.
        assert not re.search(r"(https?:)?//[a-z]", page.text) and "openapi.json" in page.text

"""GET /openapi.json and /docs: this API's description, and a page that shows it.

The document is made of the routes, of what was told of their endpoints (localllm/server/describe.py) and of the very
declarations that bind requests. It knows no endpoint.
"""

import http
import json
import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from localllm import __version__
from localllm.server.binding import Bool, Struct, Type
from localllm.server.describe import Description, described, description_of
from localllm.server.errors import APIError, Refusal, Refusals, refusal
from localllm.server.schema import Schema, schema_of
from localllm.server.streaming import json_response
from localllm.server.truncation import HEADER

OPENAPI_VERSION = "3.1.0"
JSON_TYPE = "application/json"
# Nothing but this page's own style and script, and requests to the server it came from.
CONTENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ABOUT = "Local language models: Ollama's API, OpenAI's and Anthropic's. The same request gives the same tokens."
_SCHEMA_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", type(None): "null"}


@described("this document", media_type=JSON_TYPE)
async def openapi(request: Request) -> Response:
    """The endpoint."""
    return json_response(document(request.app.routes, request.app.state.refusals))


@described("a page that shows this document", media_type="text/html")
async def docs(request: Request) -> Response:
    """The endpoint."""
    page = files(__package__).joinpath("docs.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers={"Content-Security-Policy": CONTENT_POLICY, "Referrer-Policy": "no-referrer"})


def document(routes: Iterable[BaseRoute], refusals: Refusals) -> dict[str, Any]:
    """The OpenAPI document of these routes. Raises: LookupError for an endpoint that nothing was told of."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Route):
            operations = paths.setdefault(_shown_path(route), {})
            for method in sorted((route.methods or set()) - ({"HEAD"} if "GET" in (route.methods or ()) else set())):
                operations[method.lower()] = _operation(route, method, refusals)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "localllm", "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _shown_path(route: Route) -> str:
    return re.sub(r":\w+}", "}", route.path)


def _operation(route: Route, method: str, refusals: Refusals) -> dict[str, Any]:
    about = description_of(route.endpoint)
    if about is None:
        raise LookupError(f"{method} {route.path}: its endpoint needs `@described` (localllm/server/describe.py)")
    operation: Schema = {
        "operationId": f"{method.lower()}{re.sub('[^A-Za-z0-9]+', '_', route.path).rstrip('_')}",
        "tags": [dialect_of(route.path)],
        "summary": about.summary,
        "responses": _responses(route, about, refusals),
    }
    if method == "HEAD":
        for response in operation["responses"].values():
            response.pop("content", None)
    if parameters := [*_path_parameters(route), *_query_parameters(about)]:
        operation["parameters"] = parameters
    if about.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": schema_of(about.body)}}}
    elif about.form:
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": _form(about)}}}
    return operation


def dialect_of(path: str) -> str:
    """Whose API a path belongs to."""
    if path.startswith("/v1/messages"):
        return "Anthropic"
    return "OpenAI" if path.startswith("/v1/") else "Ollama"


def _path_parameters(route: Route) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.param_convertors
    ]


def _query_parameters(about: Description) -> list[Schema]:
    return [{"name": name, "in": "query", "schema": _query_schema(kind)} for name, kind in about.query.items()]


def _query_schema(kind: Type) -> Schema:
    schema = schema_of(kind)
    return {**schema, "enum": [True, False]} if isinstance(kind, Bool) else schema


def _form(about: Description) -> Schema:
    properties = {name: schema_of(kind) for name, kind in about.form.items()}
    properties["file"] = {"type": "string", "contentMediaType": "application/octet-stream"}
    return {"type": "object", "properties": properties, "required": ["file", *about.form]}


def _responses(route: Route, about: Description, refusals: Refusals) -> dict[str, Schema]:
    has_body = about.body is not None or bool(about.form)
    statuses = {401, 403, *((400, 408, 413, 415) if has_body else ()), *about.errors}
    refuse = refusal(refusals, route.path)
    responses = {"200": _success(about)}
    for status in sorted(statuses):
        responses[str(status)] = _refusal(status, refuse)
    return responses


def _success(about: Description) -> Schema:
    content: dict[str, Schema] = {}
    if about.media_type:
        content[about.media_type] = {"schema": {}}
    elif about.answer is not None:
        content[JSON_TYPE] = {"schema": schema_of(about.answer)}
    if about.streams:
        content[about.streams] = {"schema": {}}
    success: Schema = {"description": "the answer", **({"content": content} if content else {})}
    if isinstance(about.answer, Struct) and "truncated" in about.answer.fields:
        told = "what the model did not read of the request, such as `messages=3, tokens=512`; absent if it read all"
        success["headers"] = {HEADER: {"description": told, "schema": {"type": "string"}}}
    return success


def _refusal(status: int, refuse: Refusal) -> Schema:
    phrase = http.HTTPStatus(status).phrase if status in http.HTTPStatus._value2member_map_ else "canceled"
    described_status: Schema = {"description": phrase.lower()}
    if status != 403:  # refused for its Host or Origin, without a body
        example = json.loads(bytes(refuse(APIError(status, phrase.lower())).body))
        described_status["content"] = {JSON_TYPE: {"schema": schema_of_example(example), "example": example}}
    return described_status


def schema_of_example(value: Any) -> Schema:
    """A schema that fits a value and others of its shape."""
    if isinstance(value, dict):
        return {
            "type": "object",
            "properties": {key: schema_of_example(item) for key, item in value.items()},
            "required": list(value),
        }
    # A text may be absent elsewhere, and what is absent here may be a text there.
    if value is None or isinstance(value, str):
        return {"type": ["string", "null"]}
    return {"type": _SCHEMA_TYPES[type(value)]}

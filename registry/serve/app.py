"""The registry protocol over a store, for reading alone; it knows nothing of sockets or of who starts it.

    GET /v2/                                 whether this is a registry, and the token the right one
    GET /v2/_catalog                         the repositories
    GET /v2/NAME/tags/list                   a repository's tags
    GET /v2/NAME/manifests/TAG-OR-DIGEST     a manifest, byte for byte as it is in the store
    GET /v2/NAME/blobs/DIGEST                a blob, or a range of it

HEAD works everywhere; what would write is refused with 405. Errors are the protocol's JSON.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from registry.digests import parse_digest
from registry.errors import InvalidDigestError
from registry.manifest import Manifest
from registry.serve.blobs import BlobResponse, UnsatisfiableRangeError, requested_part
from registry.serve.offers import blob_of, manifest_of, names_of, repositories
from registry.serve.tokens import TokenMiddleware
from registry.store import Store

logger = logging.getLogger(__name__)

API_VERSION = {"docker-distribution-api-version": "registry/2.0"}
# A blob of a digest never changes.
_FOR_EVER = {"cache-control": "private, max-age=31536000, immutable"}


def create_app(store: Store, token: str | None) -> Starlette:
    """The application; without a token everybody may read."""
    methods = ["GET", "HEAD"]
    app = Starlette(
        routes=[
            Route("/v2/", _base, methods=methods),
            Route("/v2", _base, methods=methods),
            Route("/v2/_catalog", _catalog, methods=methods),
            Route("/v2/{name:path}/tags/list", _tags, methods=methods),
            Route("/v2/{name:path}/manifests/{reference}", _manifest, methods=methods),
            Route("/v2/{name:path}/blobs/{digest}", _blob, methods=methods),
        ],
        middleware=[] if token is None else [Middleware(TokenMiddleware, token=token, refuse=_unauthorized)],
        exception_handlers={HTTPException: _http_error, RegistryProtocolError: _protocol_error},
    )
    app.router.redirect_slashes = False
    app.state.store = store
    return app


class RegistryProtocolError(Exception):
    """A refusal in the protocol's words: a status and one of its codes."""

    def __init__(self, status: int, code: str, message: str, detail: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.detail = detail


async def _base(request: Request) -> Response:
    return JSONResponse({}, headers=API_VERSION)


async def _catalog(request: Request) -> Response:
    found = await run_in_threadpool(repositories, _store(request))
    return _page(request, "repositories", found, {})


async def _tags(request: Request) -> Response:
    path = request.path_params["name"]
    names = await run_in_threadpool(names_of, _store(request), path)
    if not names:
        raise _unknown_name(path)
    return _page(request, "tags", sorted(name.tag for name in names), {"name": path})


async def _manifest(request: Request) -> Response:
    path, reference = request.path_params["name"], request.path_params["reference"]
    manifest = await run_in_threadpool(_find_manifest, _store(request), path, reference)
    if request.method == "GET":
        logger.info("%s reads %s:%s", request.client.host if request.client else "a client", path, reference)
    headers = _headers(f"sha256:{manifest.digest}", manifest.media_type, {})
    if _has_it(request, headers):
        return Response(status_code=304, headers=headers)
    return Response(manifest.raw, headers=headers)


async def _blob(request: Request) -> Response:
    path, store = request.path_params["name"], _store(request)
    digest = _digest(request.path_params["digest"])
    layer = await run_in_threadpool(lambda: blob_of(store, names_of(store, path), digest))
    if layer is None:
        raise RegistryProtocolError(404, "BLOB_UNKNOWN", "blob unknown to registry", {"digest": digest})
    headers = _headers(digest, "application/octet-stream", {"accept-ranges": "bytes", **_FOR_EVER})
    if _has_it(request, headers):
        return Response(status_code=304, headers=headers)
    try:
        part = requested_part(request.headers, layer.size, headers["etag"])
    except UnsatisfiableRangeError as error:
        return Response(status_code=416, headers={**headers, "content-range": str(error)})
    return BlobResponse(store.blobs.path(digest), layer.size, part, headers)


def _store(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


def _find_manifest(store: Store, path: str, reference: str) -> Manifest:
    names = names_of(store, path)
    if not names:
        raise _unknown_name(path)
    found = manifest_of(store, names, reference)
    if found is None:
        detail = {"name": path, "reference": reference}
        raise RegistryProtocolError(404, "MANIFEST_UNKNOWN", "manifest unknown", detail)
    return found


def _unknown_name(path: str) -> RegistryProtocolError:
    return RegistryProtocolError(404, "NAME_UNKNOWN", "repository name not known to registry", {"name": path})


def _digest(text: str) -> str:
    try:
        return parse_digest(text)
    except InvalidDigestError as error:
        raise RegistryProtocolError(400, "DIGEST_INVALID", str(error), {"digest": text}) from None


def _headers(digest: str, media_type: str, more: dict[str, str]) -> dict[str, str]:
    return {
        "content-type": media_type,
        "docker-content-digest": digest,
        "etag": f'"{digest}"',
        **API_VERSION,
        **more,
    }


def _has_it(request: Request, headers: dict[str, str]) -> bool:
    """Whether the client has this version already."""
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    return headers["etag"] in known or "*" in known


def _page(request: Request, key: str, values: list[str], more: dict[str, str]) -> Response:
    """A list, or the part of it that `n` and `last` ask for, with a link to the next one."""
    wanted, last = request.query_params.get("n", ""), request.query_params.get("last", "")
    rest = [value for value in values if value > last]
    n = int(wanted) if re.fullmatch(r"[0-9]{1,9}", wanted) else len(rest)
    headers = dict(API_VERSION)
    if 0 < n < len(rest):
        headers["link"] = f'<{request.url.path}?n={n}&last={rest[n - 1]}>; rel="next"'
    return JSONResponse({**more, key: rest[:n]}, headers=headers)


def _error(status: int, code: str, message: str, detail: Any = None) -> Response:
    entry = {"code": code, "message": message, "detail": detail}
    return JSONResponse({"errors": [entry]}, status, headers=API_VERSION)


def _unauthorized() -> Response:
    return _error(401, "UNAUTHORIZED", "authentication required")


async def _protocol_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RegistryProtocolError)
    return _error(error.status, error.code, str(error), error.detail)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        response = _error(405, "UNSUPPORTED", "this registry is read-only")
        response.headers["allow"] = "GET, HEAD"
        return response
    return _error(error.status_code, "NAME_UNKNOWN" if error.status_code == 404 else "UNKNOWN", error.detail)

"""POST /api/copy: gives a model in the store a second name."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from localllm.server.binding import String, Struct, read
from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.lookup import model_name
from registry.errors import InvalidNameError, ModelNotFoundError
from registry.names import Name

COPY_REQUEST = Struct("api.CopyRequest", {"source": String(), "destination": String()})


@described("a second name for a model", body=COPY_REQUEST, errors=(404, 500))
async def copy(request: Request) -> Response:
    """The endpoint; its answer has no body."""
    body = await read(request, COPY_REQUEST)
    source = _name("source", body["source"])
    destination = _name("destination", body["destination"])
    try:
        await asyncio.to_thread(daemon_of(request).store.copy, source, destination)
    except ModelNotFoundError:
        raise APIError(404, f'model "{body["source"]}" not found') from None
    return Response()


def _name(role: str, text: str) -> Name:
    try:
        return model_name(text)
    except InvalidNameError as error:
        raise APIError(400, f'{role} "{text}" is invalid', hint=error.hint) from error

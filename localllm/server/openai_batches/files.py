"""/v1/files: what batches read and write, stored by the daemon."""

import asyncio

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from localllm.server.binding import Bool, Int, List, String, Struct, refuse_encoded
from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.openai_batches.file_store import FileStore, NoRoomError, StoredFile
from localllm.server.openai_batches.pages import PAGE, page
from localllm.server.openai_batches.stores import files_of
from localllm.server.streaming import json_response

PURPOSE = "batch"
FILE = Struct(
    "openai.File",
    {
        "id": String(default=None),
        "object": String(default=None),
        "bytes": Int(default=None),
        "created_at": Int(default=None),
        "filename": String(default=None),
        "purpose": String(default=None),
        "status": String(default=None),
    },
)
FILES = Struct(
    "openai.FileList",
    {"object": String(default=None), "data": List(FILE), "has_more": Bool(default=None)},
)
DELETED = Struct(
    "openai.FileDeleted",
    {"id": String(default=None), "object": String(default=None), "deleted": Bool(default=None)},
)


@described("uploads a file of requests for a batch", form={"purpose": String()}, answer=FILE, errors=(500,))
async def upload(request: Request) -> Response:
    """The endpoint: a form with a `file`, and "batch" as its `purpose`."""
    refuse_encoded(request)
    try:
        form = await request.form(max_files=1, max_fields=8)
    except HTTPException as error:
        raise APIError(400, error.detail) from error
    try:
        source, purpose = form.get("file"), form.get("purpose")
        if not isinstance(source, UploadFile):
            raise APIError(400, "file: expected a file in a form (multipart/form-data)")
        if purpose != PURPOSE:
            raise APIError(400, f'purpose: expected "{PURPOSE}"')
        store = files_of(daemon_of(request))
        try:
            name = source.filename or "file"
            added = await asyncio.to_thread(store.add, source.file, name, PURPOSE)
        except NoRoomError as error:
            raise APIError(400, str(error), hint="delete files, or raise LOCALLLM_FILES_MAX") from error
    finally:
        await form.close()
    return json_response(added.as_json())


@described("the files, newest first", query={**PAGE, "purpose": String()}, answer=FILES, errors=(400,))
async def files(request: Request) -> Response:
    """The endpoint."""
    found = await asyncio.to_thread(files_of(daemon_of(request)).all)
    purpose = request.query_params.get("purpose")
    return json_response(page([file.as_json() for file in found if purpose in (None, "", file.purpose)], request))


@described("what is known of a file", answer=FILE, errors=(404,))
async def file(request: Request) -> Response:
    """The endpoint."""
    return json_response(_found(request)[1].as_json())


@described("the bytes of a file", media_type="application/octet-stream", errors=(404,))
async def content(request: Request) -> Response:
    """The endpoint."""
    store, found = _found(request)
    return FileResponse(store.path(found.id), media_type="application/octet-stream")


@described("removes a file", answer=DELETED, errors=(404, 500))
async def delete(request: Request) -> Response:
    """The endpoint."""
    store, found = _found(request)
    await asyncio.to_thread(store.remove, found.id)
    return json_response({"id": found.id, "object": "file", "deleted": True})


def _found(request: Request) -> tuple[FileStore, StoredFile]:
    """The file of the path. Raises: APIError with status 404."""
    store = files_of(daemon_of(request))
    return store, existing_file(store, request.path_params["file_id"])


def existing_file(store: FileStore, file_id: str) -> StoredFile:
    """The file of an id. Raises: APIError with status 404."""
    found = store.get(file_id)
    if found is None:
        raise APIError(404, f"No such File object: {file_id}")
    return found

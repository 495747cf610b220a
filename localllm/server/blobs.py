"""/api/blobs/<digest>: whether the store has a file, or takes one of which a model will be created.

A client on this machine need not send a file: it names it (`X-Localllm-File: <path, percent-encoded>`, no body) and the
store shares its bytes where the file system can. Its digest proves that the client knows the file; nothing else
is told of it. Other servers see an empty body, whose digest is another one, and say so.
"""

import asyncio
import secrets
import threading
from collections.abc import Generator
from pathlib import Path
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from localllm.server.access import is_from_here
from localllm.server.binding import refuse_encoded
from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.shapes import PROGRESS
from localllm.server.streaming import RecordsResponse
from localllm.server.threads import Tell, run_steps, told
from registry.digests import parse_digest
from registry.errors import DigestMismatchError, SourceError
from registry.progress import SUCCESS, Progress
from registry.sharing import take
from registry.store import Store

FILE_HEADER = "x-localllm-file"
# What is written and hashed at once, in a thread: the pieces that come from a connection are far smaller.
PIECE_BYTES = 1 << 20


@described("whether the store has a blob", errors=(400, 404))
async def has_blob(request: Request) -> Response:
    """The endpoint: 200 or 404, 400 for what is no digest."""
    digest = parse_digest(request.path_params["digest"])
    found = await asyncio.to_thread(daemon_of(request).store.blobs.has, digest)
    return Response(status_code=200 if found else 404)


@described("takes a file of a model to be created into the store", answer=PROGRESS, errors=(400, 403, 500))
async def take_blob(request: Request) -> Response:
    """The endpoint: 201, or 200 where the blob is there already. A file that is named gives events, as a pull does."""
    digest = parse_digest(request.path_params["digest"])
    refuse_encoded(request)
    daemon = daemon_of(request)
    named = request.headers.get(FILE_HEADER)
    if named is not None:
        if not is_from_here(request):
            raise APIError(403, "only clients on this machine may name a file instead of sending it")
        path = Path(unquote(named))
        return RecordsResponse(told(lambda tell: _share(daemon.store, digest, path, tell)), stream=True)
    is_new = not await asyncio.to_thread(daemon.store.blobs.has, digest)
    await (_receive(request, daemon.store, digest) if is_new else _drain(request))
    return Response(status_code=201 if is_new else 200)


async def _receive(request: Request, store: Store, digest: str) -> None:
    length = request.headers.get("content-length", "")
    n_announced = int(length) if length.isascii() and length.isdigit() else 0
    with await asyncio.to_thread(store.blobs.writer, None, n_announced) as writer:
        piece = bytearray()
        async for chunk in request.stream():
            piece += chunk
            if len(piece) >= PIECE_BYTES:
                await asyncio.to_thread(writer.write, bytes(piece))
                piece.clear()
        await asyncio.to_thread(writer.write, bytes(piece))
        try:
            await asyncio.to_thread(writer.commit, digest)
        except DigestMismatchError as error:
            raise APIError(400, f'digest mismatch, expected "{error.want}", got "{error.got}"') from error


async def _drain(request: Request) -> None:
    """Read what comes, so that a client that still sends sees the answer and no broken connection."""
    async for _ in request.stream():
        pass


async def _share(store: Store, digest: str, path: Path, tell: Tell) -> None:
    def take_file(cancel: threading.Event) -> Generator[Progress, None, None]:
        return _take(store, digest, path, cancel)

    if not await asyncio.to_thread(store.blobs.has, digest):
        await run_steps(take_file, lambda event: tell(_as_blobs(event, digest).to_json()))
    tell(SUCCESS.to_json())


def _as_blobs(event: Progress, digest: str) -> Progress:
    return Progress(f"sharing file {digest}", digest, event.total, event.completed)


def _take(store: Store, digest: str, path: Path, cancel: threading.Event) -> Generator[Progress, None, None]:
    with store.staging(secrets.token_hex(16)) as staging:
        try:
            if not path.is_absolute() or not path.is_file():
                raise SourceError(f'"{path}" is not the absolute path of a file')
            staged, found = yield from take(path.resolve(), staging.path / "file", cancel)
        except (SourceError, OSError) as error:
            # One text for all: who may not read a file learns nothing of it here.
            hint = "send the file instead"
            raise APIError(400, f'"{path}" cannot be shared with the store', hint=hint) from error
        if found != digest:
            raise APIError(400, f'digest mismatch, expected "{digest}"')
        store.blobs.adopt(staged, digest)

"""POST /api/pull: brings a model into the store and tells how far it is; it knows nothing of sources.

A pull is blocking work, so it has a thread of its own, which hands its events over. When the client goes away the
pull is canceled: the next one goes on from what has come, unless the daemon is started anew before. When the daemon
ends, what has come is kept for an hour.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.gguf.summary import read_summary
from localllm.server.access import is_from_here
from localllm.server.binding import Bool, String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import NDJSON, described
from localllm.server.errors import APIError
from localllm.server.shapes import PROGRESS
from localllm.server.streaming import Records, RecordsResponse
from registry.create import ModelFacts
from registry.progress import Cancellation, Progress
from registry.remote import Access, Credentials, key_path

PULL_REQUEST = Struct(
    "api.PullRequest",
    {
        "model": String(),
        "name": String(),
        "insecure": Bool(),
        "username": String(),
        "password": String(),
        "stream": Bool(default=None),
    },
)
CANCEL_GRACE_S = 10.0


@described("brings a model into the store", body=PULL_REQUEST, answer=PROGRESS, streams=NDJSON, errors=(500,))
async def pull(request: Request) -> Response:
    """The endpoint."""
    body = await read(request, PULL_REQUEST)
    reference = (body["model"] or body["name"]).strip()
    if not reference:
        raise APIError(400, "invalid model name")
    refuse_foreign(request, reference)
    daemon = daemon_of(request)
    return RecordsResponse(events(daemon, reference, access(daemon, body)), stream=body["stream"] is not False)


def access(daemon: Daemon, body: Mapping[str, Any]) -> Access:
    """What a request's `insecure`, `username` and `password` allow and say, with the daemon's own key."""
    given = Credentials(body["username"], body["password"]) if body["username"] or body["password"] else None
    return Access(body["insecure"], given, key_path(daemon.settings.state_dir))


def refuse_foreign(request: Request, reference: str) -> None:
    """Refuse a source that only this machine's own clients may use. Raises: APIError with status 403."""
    source = reference.partition(":")[0]
    if source in ("file", "pip") and not is_from_here(request):
        raise APIError(
            403, f"{source}: uses this machine's own files and settings: only its own clients may pull from it"
        )


def events(daemon: Daemon, reference: str, given: Access | None = None) -> Records:
    """The events of a pull; closing them cancels it."""
    access = given or Access(key=key_path(daemon.settings.state_dir))
    return told_by_a_thread(daemon, f"pull {reference}", lambda cancel: daemon.pull(reference, cancel, access))


async def told_by_a_thread(
    daemon: Daemon, label: str, work: Callable[[threading.Event], Iterator[Progress]]
) -> Records:
    """The events of blocking work, which has a thread of its own; closing them, or the daemon's end, cancels it."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue()
    cancel = Cancellation()

    def hand_over(event: dict[str, Any] | Exception | None) -> None:
        # The loop may be closed already when the daemon ends.
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, event)

    def run() -> None:
        try:
            for progress in work(cancel):
                hand_over(progress.to_json())
        except Exception as error:
            hand_over(error)
        hand_over(None)

    thread = threading.Thread(target=run, name=label, daemon=True)
    with daemon.pulling(cancel):
        thread.start()
        try:
            while (event := await queue.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            if not cancel.is_set():
                cancel.abandon()
            await _joined(thread)


async def _joined(thread: threading.Thread) -> None:
    """Wait for a canceled pull to tidy up; one that does not is left to the next start's `prune`."""
    deadline = asyncio.get_running_loop().time() + CANCEL_GRACE_S
    while thread.is_alive() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)


def inspect(paths: Sequence[Path]) -> ModelFacts:
    """What a config blob says of a GGUF. Raises: GGUFError."""
    summary = read_summary(list(paths))
    return ModelFacts(summary.architecture or "", summary.parameter_count, summary.file_type)

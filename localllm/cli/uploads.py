"""Brings files to the server, as blobs: not at all where it has them, by name where it may, else byte by byte."""

import hashlib
import queue
import re
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from localllm import env
from localllm.client import Client, ClientError
from localllm.errors import ModelfileError

PIECE_BYTES = 1 << 20
_BLOB = re.compile(r"sha256-([0-9a-f]{64})")

Event = dict[str, Any]


def bring(client: Client, files: dict[str, Path]) -> Generator[Event, None, dict[str, str]]:
    """Yields progress objects; returns the digests by the files' names. Raises: ClientError, ModelfileError."""
    digests = {}
    shares = client.shares_files if files else False
    for name, path in files.items():
        digests[name] = yield from _bring_one(client, path, shares)
    return digests


def _bring_one(client: Client, path: Path, shares: bool) -> Generator[Event, None, str]:
    own = _of_own_store(path)
    if own and client.has_blob(own):
        return own
    digest = yield from _digest(path)
    if client.has_blob(digest):
        return digest
    if shares and (yield from _shared(client, digest, path)):
        return digest
    total = path.stat().st_size
    for n_bytes in _sent(client, digest, path):
        yield _copying(digest, total, n_bytes)
    return digest


def _copying(digest: str, total: int, completed: int) -> Event:
    return {"status": f"copying file {digest}", "digest": digest, "total": total, "completed": completed}


def _of_own_store(path: Path) -> str:
    """The digest of a file that is a blob of this user's store, "" of others: its name is to be believed."""
    match = _BLOB.fullmatch(path.name)
    is_own = match is not None and path.absolute().parent == env.models_dir() / "blobs"
    return f"sha256:{match[1]}" if match is not None and is_own else ""


def _digest(path: Path) -> Generator[Event, None, str]:
    sha256 = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                sha256.update(piece)
                yield {"status": "gathering model components"}
    except OSError as error:
        raise ModelfileError(f'cannot read "{path}": {error.strerror}') from error
    return f"sha256:{sha256.hexdigest()}"


def _shared(client: Client, digest: str, path: Path) -> Generator[Event, None, bool]:
    """Whether the server took the file by its name; it may not be where we think, or not be allowed to read it."""
    try:
        for event in client.share_blob(digest, path.absolute()):
            if event.get("total"):
                yield _copying(digest, event["total"], event.get("completed", 0))
    except ClientError as error:
        if error.status is None:
            raise
        return False
    return True


def _sent(client: Client, digest: str, path: Path) -> Iterator[int]:
    """Send a file in a thread; gives the bytes sent so far, from time to time."""
    sent: queue.Queue[int | None] = queue.Queue()
    failures: list[Exception] = []

    def send() -> None:
        try:
            client.send_blob(digest, path, sent.put)
        except Exception as error:
            failures.append(error)
        sent.put(None)

    threading.Thread(target=send, daemon=True).start()
    while (n_bytes := sent.get()) is not None:
        yield n_bytes
    if failures:
        raise failures[0]

"""Runs the batches, one after another, the oldest first; it knows nothing of models.

Its requests go the way of all others, into the application, with a daemon whose leases are not interactive. A request
that is too busy to be served is made again later. What a daemon that ends has not answered is left to the next one.
"""

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from starlette.types import ASGIApp

from localllm.scheduler import BackgroundScheduler, Scheduler
from localllm.server.daemon import Daemon
from localllm.server.errors import APIError
from localllm.server.openai.errors import body_of
from localllm.server.openai_batches import folder, validation
from localllm.server.openai_batches.batch_store import ERRORS, INPUT, OUTPUT, Batch, BatchStore
from localllm.server.openai_batches.file_store import PREFIX as FILE_PREFIX
from localllm.server.openai_batches.file_store import FileStore
from localllm.server.openai_batches.in_process import post
from localllm.server.openai_batches.tidying import tidy

logger = logging.getLogger(__name__)

BUSY_PAUSE_S = 1.0
MAX_BUSY_PAUSE_S = 30.0
EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}


class StoppingError(Exception):
    """The daemon ends: nothing more is to be written."""


class BatchWorker:
    """`run` is a task of the daemon's; `wake` tells it that there is a new batch or one that was cancelled."""

    def __init__(self, app: ASGIApp, daemon: Daemon, batches: BatchStore, files: FileStore) -> None:
        self._app = app
        self._scheduler = daemon.scheduler
        self._daemon = replace(daemon, scheduler=cast(Scheduler, BackgroundScheduler(daemon.scheduler)))
        self._batches = batches
        self._files = files
        self._changed = asyncio.Event()
        self._started_s = time.time()

    def wake(self) -> None:
        """Look again at what there is."""
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled."""
        await asyncio.to_thread(tidy, self._batches, self._files, self._started_s)
        with contextlib.suppress(StoppingError):
            while True:
                self._changed.clear()
                batch = await asyncio.to_thread(self._oldest)
                if batch is not None:
                    await self._guarded(batch)
                else:
                    await self._changed.wait()

    def _oldest(self) -> Batch | None:
        return next((batch for batch in reversed(self._batches.all()) if batch.is_waiting), None)

    async def _guarded(self, batch: Batch) -> None:
        """What goes wrong ends one batch."""
        try:
            await self._advance(batch)
        except StoppingError:
            raise
        except Exception as error:
            logger.error("batch %s failed: %s", batch.id, type(error).__name__, exc_info=error)
            problem = {"code": "internal_error", "message": f"the batch cannot be run: {_told(error)}", "param": None}
            with contextlib.suppress(OSError, LookupError):
                self._batches.change(batch.id, status="failed", errors=[{**problem, "line": None}])
                self._batches.remove_input(batch.id)
                return
            await asyncio.sleep(MAX_BUSY_PAUSE_S)  # not even that can be written

    async def _advance(self, batch: Batch) -> None:
        """From one status to the next."""
        if batch.status == "validating":
            await self._validate(batch)
        elif batch.status == "in_progress":
            await self._make_requests(batch)
        else:
            await self._finalize(batch)

    async def _validate(self, batch: Batch) -> None:
        path = self._batches.path(batch.id, INPUT)
        total, problems = await asyncio.to_thread(validation.validate, path, batch.endpoint)
        current = self._batches.get(batch.id)
        if current is None or current.status != "validating":
            return
        if problems:
            self._batches.change(batch.id, status="failed", errors=problems)
            self._batches.remove_input(batch.id)
        else:
            logger.info("batch %s: %d requests to %s", batch.id, total, batch.endpoint)
            self._batches.change(batch.id, status="in_progress", total=total)

    async def _make_requests(self, batch: Batch) -> None:
        completed, failed = await asyncio.to_thread(self._done_ids, batch.id)
        self._batches.change(batch.id, completed=len(completed), failed=len(failed))
        done = completed | failed
        lines = (line for line in self._batches.input_lines(batch.id) if line["custom_id"] not in done)
        runners = [
            asyncio.create_task(self._run_lines(batch, lines))
            for _ in range(max(1, self._daemon.settings.num_parallel))
        ]
        try:
            await self._until_over(batch, runners)
        finally:
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*runners, return_exceptions=True)
            lines.close()
        if self._scheduler.is_stopping:
            raise StoppingError
        n_expired = await asyncio.to_thread(self._expire_rest, batch) if time.time() >= batch.expires_at else 0
        current = self._batches.get(batch.id)
        if current is not None and current.status == "in_progress":
            failed_so_far = current.failed + n_expired
            self._batches.change(batch.id, status="finalizing", is_expired=n_expired > 0, failed=failed_so_far)

    def _done_ids(self, batch_id: str) -> tuple[set[str], set[str]]:
        return self._batches.done_ids(batch_id, OUTPUT), self._batches.done_ids(batch_id, ERRORS)

    async def _until_over(self, batch: Batch, runners: "list[asyncio.Task[None]]") -> None:
        """Wait until all requests are made, the time is over, or somebody cancels the batch."""
        current: Batch | None = batch
        while current is not None and current.status == "in_progress" and time.time() < batch.expires_at:
            running = [runner for runner in runners if not runner.done()]
            if not running:
                break
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            left_s = max(0.0, batch.expires_at - time.time())
            await asyncio.wait((*running, changed), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            current = self._batches.get(batch.id)
        for runner in runners:
            if runner.done():
                runner.result()

    async def _run_lines(self, batch: Batch, lines: Iterator[dict[str, Any]]) -> None:
        for line in lines:
            status, body = await self._answered(batch.endpoint, line["body"])
            if self._scheduler.is_stopping:
                raise StoppingError
            response = {"status_code": status, "request_id": f"req_{uuid.uuid4().hex}", "body": body}
            self._record(batch.id, line["custom_id"], response, is_completed=status < 400)

    async def _answered(self, endpoint: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and body of a request, which is made again for as long as it is too busy."""
        if any(name.lower() == "stream" and value for name, value in body.items()):
            return 400, body_of(APIError(400, "stream: a batch has whole answers only"))
        content = json.dumps(body).encode()
        pause_s = BUSY_PAUSE_S
        while True:
            status, answer = await post(self._app, self._daemon, endpoint, content)
            if status != 503 or self._scheduler.is_stopping:
                return status, _parsed(answer)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_BUSY_PAUSE_S)

    def _record(self, batch_id: str, custom_id: str, response: dict[str, Any], *, is_completed: bool) -> None:
        line = {"id": folder.new_id("batch_req_"), "custom_id": custom_id, "response": response, "error": None}
        self._batches.append(batch_id, OUTPUT if is_completed else ERRORS, line)
        current = self._batches.get(batch_id)
        if current is not None:
            n_failed = current.failed + (not is_completed)
            self._batches.change(batch_id, completed=current.completed + is_completed, failed=n_failed)

    async def _finalize(self, batch: Batch) -> None:
        """Make files of what has come of a batch; done twice, after a crash, it is the same."""
        ids = {}
        for name, key in ((OUTPUT, "output_file_id"), (ERRORS, "error_file_id")):
            path = self._batches.path(batch.id, name)
            known = getattr(batch, key)
            if known or (path.exists() and path.stat().st_size):
                ids[key] = known or folder.new_id(FILE_PREFIX)
        batch = self._batches.change(batch.id, **ids)
        for name, file_id in ((OUTPUT, batch.output_file_id), (ERRORS, batch.error_file_id)):
            if file_id:
                path = self._batches.path(batch.id, name)
                self._files.adopt(path, file_id, f"{batch.id}_{name}", "batch_output")
        last = "cancelled" if batch.status == "cancelling" else "expired" if batch.is_expired else "completed"
        self._batches.change(batch.id, status=last)
        self._batches.remove_input(batch.id)
        logger.info("batch %s is %s: %d of %d requests", batch.id, last, batch.completed, batch.total)

    def _expire_rest(self, batch: Batch) -> int:
        """Say of each request that was not made why; how many there were."""
        done = set[str]().union(*self._done_ids(batch.id))
        rest = [line["custom_id"] for line in self._batches.input_lines(batch.id) if line["custom_id"] not in done]
        for custom_id in rest:
            told = {"id": folder.new_id("batch_req_"), "custom_id": custom_id, "response": None, "error": EXPIRED}
            self._batches.append(batch.id, ERRORS, told)
        return len(rest)


def _told(error: Exception) -> str:
    """What is known of an error; the text of one that nobody foresaw may say anything."""
    return str(error) if isinstance(error, OSError | ValueError | LookupError) else type(error).__name__


def _parsed(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return {
            "error": {"message": answer.decode("utf-8", "replace"), "type": "api_error", "param": None, "code": None}
        }

"""Batches on disk: what is known of each, its input, and what has come of it so far; it knows nothing of HTTP.

    <folder>/<id>/batch.json     the record
    <folder>/<id>/input.jsonl    the requests, until the end
    <folder>/<id>/output.jsonl   answers, and errors.jsonl what failed; a line each, as they come

After a crash the last line may be cut: it is dropped, and its request made again.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from localllm.server.openai_batches.folder import is_id, new_id, read_record, remove_parts, write_record

PREFIX = "batch_"
WAITING = ("validating", "in_progress", "finalizing", "cancelling")
"""What a batch goes through before it is completed, failed, expired or cancelled."""
INPUT, OUTPUT, ERRORS = "input.jsonl", "output.jsonl", "errors.jsonl"


@dataclass(frozen=True)
class Batch:
    """What is known of a batch. Times are in Unix seconds, by the name of what happened then (`completed_at`).

    `errors` are what was wrong with the input: {"code", "message", "param", "line"}.
    """

    id: str
    input_file_id: str
    endpoint: str
    completion_window: str
    created_at: int
    expires_at: int
    status: str = "validating"
    metadata: dict[str, Any] | None = None
    times: dict[str, int] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    completed: int = 0
    failed: int = 0
    is_expired: bool = False
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether something is still to come."""
        return self.status in WAITING

    @property
    def ended_at(self) -> int:
        """When the last thing happened, in Unix seconds."""
        return max(self.times.values(), default=self.created_at)

    def as_json(self) -> dict[str, Any]:
        """OpenAI's batch object."""
        moments = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{moment}_at": self.times.get(moment) for moment in moments},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }


class BatchStore:
    """The batches in a folder. `put`, `change` and `append` belong to one event loop, the rest to any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new(self, **fields: Any) -> Batch:
        """A batch that is not stored yet; its input is still to be put in its folder."""
        return Batch(new_id(PREFIX), created_at=int(time.time()), **fields)

    def put(self, batch: Batch, *, syncs: bool = True) -> None:
        """Store a batch. Raises: OSError."""
        write_record(self.path(batch.id, "batch.json"), asdict(batch), syncs=syncs)

    def get(self, batch_id: str) -> Batch | None:
        """A batch, None where there is none of that id."""
        return read_record(self.path(batch_id, "batch.json"), Batch) if is_id(batch_id) else None

    def change(self, batch_id: str, *, status: str | None = None, **fields: Any) -> Batch:
        """Change what is known of a batch; a new status takes the time. Raises: LookupError, OSError.

        Only a new status waits for the disk: counts, which change with every request, are found again in the answers.
        """
        batch = self.get(batch_id)
        if batch is None:
            raise LookupError(batch_id)
        if status is not None and status != batch.status:
            fields |= {"status": status, "times": {**batch.times, status: int(time.time())}}
        changed = replace(batch, **fields)
        self.put(changed, syncs=changed.status != batch.status)
        return changed

    def all(self) -> list[Batch]:
        """All batches, newest first."""
        found = [self.get(path.name) for path in self._folder.glob(f"{PREFIX}*")]
        return sorted((batch for batch in found if batch), key=lambda one: (one.created_at, one.id), reverse=True)

    def remove(self, batch_id: str) -> None:
        """Remove a batch. Raises: OSError."""
        shutil.rmtree(self._folder / batch_id)

    def remove_parts(self, before_s: float) -> None:
        """Remove what a crash before `before_s`, in Unix seconds, left half written or without a record.

        Raises: OSError.
        """
        remove_parts(self._folder, f"{PREFIX}*/*", before_s)
        for path in self._folder.glob(f"{PREFIX}*"):
            if is_id(path.name) and path.stat().st_mtime < before_s and not (path / "batch.json").exists():
                self.remove(path.name)

    def remove_input(self, batch_id: str) -> None:
        """Let go of the requests of a batch that has ended. Raises: OSError."""
        self.path(batch_id, INPUT).unlink(missing_ok=True)

    def contents(self) -> list[Path]:
        """The inputs that are held and the answers so far, of all batches."""
        return list(self._folder.glob(f"{PREFIX}*/*.jsonl"))

    def path(self, batch_id: str, name: str) -> Path:
        """A file of a batch."""
        return self._folder / batch_id / name

    def append(self, batch_id: str, name: str, line: dict[str, Any]) -> None:
        """Add a line to what has come of a batch. Raises: OSError."""
        with self.path(batch_id, name).open("ab") as file:
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n")

    def done_ids(self, batch_id: str, name: str) -> set[str]:
        """The custom ids of the lines that are whole; what a crash left behind the last of them is cut off."""
        path = self.path(batch_id, name)
        if not path.exists():
            return set()
        found, end = set(), 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                found.add(str(json.loads(line)["custom_id"]))
        os.truncate(path, end)
        return found

    def input_lines(self, batch_id: str) -> Iterator[dict[str, Any]]:
        """The requests of a batch whose input was found good."""
        with self.path(batch_id, INPUT).open("rb") as file:
            yield from (json.loads(line) for line in file if line.strip())

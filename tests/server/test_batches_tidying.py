"""What goes when a daemon starts, what stays, and what counts toward the limit of files."""

import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localllm.server.openai_batches.batch_store import INPUT, BatchStore
from localllm.server.openai_batches.file_store import FileStore, NoRoomError, StoredFile
from localllm.server.openai_batches.tidying import KEPT_S

pytestmark = pytest.mark.anyio


def add_batch(batches: BatchStore, files: FileStore, status: str, when: int) -> tuple[str, str]:
    """A batch with a result; its id and that of the result."""
    result = files.add(io.BytesIO(b"{}"), "out", "batch_output").id
    fields: dict[str, Any] = {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = batches.new(**fields, expires_at=when, status=status, times={status: when}, output_file_id=result)
    batches.put(batch)
    return batch.id, result


def touch(path: Path, when: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    os.utime(path, (when, when))
    return path


async def test_a_start_tidies_up(running: Callable[..., Any], tmp_path: Path, until: Any) -> None:
    long_ago = int(time.time()) - KEPT_S - 100
    batches, files = BatchStore(tmp_path / "openai/batches"), FileStore(tmp_path / "openai/files", 10**6)
    old, old_result = add_batch(batches, files, "completed", long_ago)
    kept = [
        add_batch(batches, files, "completed", long_ago + 1000),
        add_batch(batches, files, "finalizing", long_ago),
    ]
    left = [
        touch(tmp_path / "openai/files" / f"file-{'0' * 24}.bin.12345678.part", time.time() - 5),
        touch(batches.path(kept[0][0], "batch.json.12345678.part"), time.time() - 5),
        touch(batches.path(f"batch_{'0' * 24}", INPUT), time.time() - 5).parent,
    ]
    os.utime(left[2], (time.time() - 5,) * 2)
    own = touch(tmp_path / "openai/files" / f"file-{'1' * 24}.bin.12345678.part", time.time() + 60)
    async with running(state_dir=tmp_path) as r:
        await until(lambda: not batches.path(old, "batch.json").exists() and not any(map(Path.exists, left)))
        assert batches.get(old) is None and files.get(old_result) is None and not files.path(old_result).exists()
        found = (await r.http.get("/v1/batches")).json()["data"]
        assert {batch["id"] for batch in found} == {batch_id for batch_id, _ in kept}
        assert all(files.get(result) for _, result in kept) and own.exists()


async def test_records_are_read_beside_the_event_loop(
    running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    readers = []
    read_all = BatchStore.all

    def watched(store: BatchStore) -> Any:
        readers.append(threading.current_thread())
        return read_all(store)

    monkeypatch.setattr(BatchStore, "all", watched)
    async with running() as r:
        await r.http.get("/v1/batches")
        await until(lambda: len(readers) >= 3)
    assert threading.main_thread() not in readers


def test_an_input_that_is_held_counts_once(tmp_path: Path) -> None:
    batches = BatchStore(tmp_path / "batches")
    files = FileStore(tmp_path / "files", 25, batches.contents)

    def add(size: int) -> StoredFile:
        return files.add(io.BytesIO(b"x" * size), "x", "batch")

    source = add(10)
    held = batches.path(f"batch_{'0' * 24}", INPUT)
    files.link(source.id, held)
    files.remove(add(15).id)
    files.remove(source.id)
    with pytest.raises(NoRoomError):
        add(16)
    batches.remove_input(held.parent.name)
    assert add(25)

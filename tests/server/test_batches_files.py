"""/v1/files: what is stored, listed, given back and removed; what is refused, and that nothing is left of it."""

import io
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from localllm.server.openai_batches.file_store import FileStore, NoRoomError
from localllm.server.openai_batches.folder import is_id

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]
LINES = b'{"custom_id": "1"}\n'


def test_the_official_client(start_live: Callable[..., Any]) -> None:
    daemon = start_live()
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="x") as client:
        made = client.files.create(file=("in.jsonl", LINES), purpose="batch")
        assert made.bytes == len(LINES) and made.filename == "in.jsonl" and made.status == "processed"
        second = client.files.create(file=io.BytesIO(LINES * 2), purpose="batch")
        assert client.files.retrieve(made.id).id == made.id
        assert {file.id for file in client.files.list()} == {made.id, second.id}
        assert [file.id for file in client.files.list(limit=1)] == [file.id for file in client.files.list()]
        assert list(client.files.list(purpose="batch_output")) == []
        assert client.files.content(made.id).content == LINES
        assert client.files.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            client.files.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            client.files.content("file-../../etc/passwd")
        with pytest.raises(openai.BadRequestError, match="purpose"):
            client.files.create(file=("in.jsonl", LINES), purpose="fine-tune")


async def test_what_is_refused(running: Running, tmp_path: Path) -> None:
    form = {"files": {"file": ("x", b"x" * 100)}, "data": {"purpose": "batch"}}
    async with running(max_upload_bytes=10_000, files_max_bytes=250) as r:
        for bad in (
            {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
            {"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=b"}},
            {"json": {"purpose": "batch"}},
            {"data": {"purpose": "batch", "file": "a text"}},
            {"files": {"file": ("x", b"x")}},
            {"files": [("file", ("x", b"x")), ("file", ("y", b"y"))], "data": {"purpose": "batch"}},
        ):
            response = await r.http.post("/v1/files", **bad)
            assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error", bad
        large = await r.http.post("/v1/files", files={"file": ("x", b"x" * 20_000)}, data={"purpose": "batch"})
        assert large.status_code == 413
        for _ in range(2):
            assert (await r.http.post("/v1/files", **form)).status_code == 200
        full = await r.http.post("/v1/files", **form)
        assert full.status_code == 400 and "LOCALLLM_FILES_MAX" in full.json()["error"]["hint"]
        folder = tmp_path / "state/openai/files"
        assert len(list(folder.iterdir())) == 4
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


async def test_pages(running: Running) -> None:
    async with running() as r:
        ids = []
        for n in range(5):
            made = await r.http.post("/v1/files", files={"file": (str(n), b"x")}, data={"purpose": "batch"})
            ids.append(made.json()["id"])
        whole = (await r.http.get("/v1/files")).json()
        order = [file["id"] for file in whole["data"]]
        assert sorted(order) == sorted(ids) and not whole["has_more"]
        assert (whole["first_id"], whole["last_id"]) == (order[0], order[-1])
        part = (await r.http.get("/v1/files", params={"limit": 2, "after": order[1]})).json()
        assert [file["id"] for file in part["data"]] == order[2:4] and part["has_more"]
        backwards = (await r.http.get("/v1/files", params={"order": "asc"})).json()
        assert [file["id"] for file in backwards["data"]] == order[::-1]
        for query in ({"limit": "0"}, {"limit": "many"}, {"limit": "-1"}, {"after": "file-x"}, {"order": "up"}):
            assert (await r.http.get("/v1/files", params=query)).status_code == 400


def test_ids() -> None:
    assert is_id("file-" + "0a" * 12) and is_id("batch_" + "0a" * 12)
    for text in ("", "file-", "file-" + "0a" * 12 + "\n", "../" + "0a" * 12, "file-" + "0A" * 12, "batch_../../../x"):
        assert not is_id(text)


def test_a_store_leaves_nothing_of_what_did_not_fit(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 10)
    with pytest.raises(NoRoomError):
        store.add(io.BytesIO(b"x" * 11), "x", "batch")
    assert list(tmp_path.iterdir()) == []
    kept = store.add(io.BytesIO(b"x" * 10), "x", "batch")
    store.path("file-" + "0" * 24).write_bytes(b"half")  # what a crash may leave: bytes without a record
    assert [file.id for file in store.all()] == [kept.id]

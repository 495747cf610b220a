"""/api/blobs: files that are sent, and files of this machine that are only named."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from registry.store import Store

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]

CONTENT = b"GGUF" + os.urandom(3_000_000)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
URL = f"/api/blobs/{DIGEST}"


def named(path: Path) -> dict[str, str]:
    return {"X-Localllm-File": quote(str(path))}


@pytest.fixture
def given(tmp_path: Path) -> Path:
    folder = tmp_path / "ein Ordner – é"
    folder.mkdir()
    (folder / "m%20.gguf").write_bytes(CONTENT)
    return folder / "m%20.gguf"


async def test_a_file_is_sent_once(running: Running, store: Store) -> None:
    async with running(max_upload_bytes=1000, max_body_bytes=1000) as r:
        assert (await r.http.head(URL)).status_code == 404
        assert [(await r.http.post(url, content=CONTENT)).status_code for url in (URL, URL.replace(":", "-"))] == [
            201,
            200,
        ]
        assert (await r.http.head(URL)).status_code == 200
        assert store.blobs.path(DIGEST).read_bytes() == CONTENT
        assert [path.name for path in store.blobs.directory.iterdir()] == [DIGEST.replace(":", "-")]


async def test_an_empty_file_and_one_in_chunks(running: Running, store: Store) -> None:
    async def chunks() -> Any:
        for start in range(0, len(CONTENT), 70_001):
            yield CONTENT[start : start + 70_001]

    async with running() as r:
        assert (await r.http.post(URL, content=chunks())).status_code == 201
        empty = f"sha256:{hashlib.sha256(b'').hexdigest()}"
        assert (await r.http.post(f"/api/blobs/{empty}")).status_code == 201
        assert store.blobs.read(empty, 10) == b""


async def test_other_bytes_are_refused_and_leave_nothing(running: Running, store: Store) -> None:
    async with running() as r:
        answer = await r.http.post(URL, content=CONTENT[:-1])
        got = hashlib.sha256(CONTENT[:-1]).hexdigest()
        assert answer.status_code == 400
        assert answer.json() == {"error": f'digest mismatch, expected "{DIGEST}", got "sha256:{got}"'}
        answer = await r.http.post("/api/blobs/sha256:12", content=b"x")
        assert (answer.status_code, answer.json()["error"]) == (400, "invalid digest format")
        assert list(store.blobs.directory.glob("*")) == []


async def test_a_client_that_goes_away_leaves_nothing(running: Running, store: Store) -> None:
    async def broken() -> Any:
        yield CONTENT[:2_000_000]
        raise OSError("gone")

    async with running() as r:
        assert (await r.http.post(URL, content=broken())).status_code == 500
        assert not store.blobs.has(DIGEST) and list(store.blobs.directory.glob(".staging*")) == []


async def test_a_full_disk_is_told_before_anything_is_taken(running: Running) -> None:
    async with running() as r:
        headers = {"content-length": str(10**18)}
        answer = await r.http.post(URL, content=iter_nothing(), headers=headers)
        assert answer.status_code == 500 and answer.json()["error"].startswith("no space left on device")


async def iter_nothing() -> Any:
    yield b""


async def test_a_named_file_is_shared(running: Running, store: Store, given: Path) -> None:
    async with running() as r:
        answer = await r.http.post(URL, headers=named(given))
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert answer.status_code == 200 and lines[-1] == {"status": "success"}
        assert lines[0]["status"] == f"sharing file {DIGEST}" and lines[0]["total"] == len(CONTENT)
        blob = store.blobs.path(DIGEST)
        assert blob.read_bytes() == CONTENT
        # A clone has blocks in common and no name: where the file system has none, it is a hard link.
        assert os.stat(blob).st_nlink in (1, 2)
        assert (await r.http.post(URL, headers=named(given))).text == '{"status":"success"}\n'
        assert list(store.blobs.directory.glob(".staging*")) == []


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
async def test_what_others_may_write_is_not_linked(running: Running, store: Store, given: Path) -> None:
    given.chmod(0o666)
    async with running() as r:
        answer = await r.http.post(URL, headers=named(given))
        assert json.loads(answer.text.splitlines()[-1]) == {"status": "success"}
        given.write_bytes(b"changed in place")
        assert store.blobs.path(DIGEST).read_bytes() == CONTENT


async def test_a_named_file_must_be_the_one_of_the_digest(running: Running, store: Store, given: Path) -> None:
    given.write_bytes(b"something else")
    async with running() as r:
        answer = await r.http.post(URL, headers=named(given))
        assert json.loads(answer.text.splitlines()[-1]) == {"error": f'digest mismatch, expected "{DIGEST}"'}
        assert hashlib.sha256(b"something else").hexdigest() not in answer.text
        for other in (given.parent, given.with_name("none"), Path("m.gguf"), Path("/dev/zero")):
            answer = await r.http.post(URL, headers=named(other))
            assert answer.status_code == 400 and answer.json()["error"] == f'"{other}" cannot be shared with the store'
        assert not store.blobs.has(DIGEST)


@pytest.mark.parametrize(("address", "headers"), [("192.0.2.7", {}), ("127.0.0.1", {"X-Forwarded-For": "192.0.2.7"})])
async def test_only_clients_of_this_machine_name_files(
    running: Running, store: Store, given: Path, address: str, headers: dict[str, str]
) -> None:
    async with running() as r:
        transport = httpx.ASGITransport(r.http._transport.app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as elsewhere:
            answer = await elsewhere.post(URL, headers={**named(given), **headers})
            assert answer.status_code == 403 and not store.blobs.has(DIGEST)
            assert (await elsewhere.post(URL, content=CONTENT)).status_code == 201


async def test_no_web_page_names_files(running: Running, store: Store, given: Path) -> None:
    async with running() as r:
        asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Headers": "x-localllm-file"}
        allowed = (await r.http.options(URL, headers=asked)).headers["access-control-allow-headers"]
        assert "localllm" not in allowed.lower()

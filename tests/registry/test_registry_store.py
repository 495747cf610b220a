"""The store: what it reads, what it writes, what it removes, and when it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from registry import (
    BrokenModelError,
    DigestMismatchError,
    InvalidDigestError,
    ModelNotFoundError,
    NoSpaceError,
    Store,
    StoreNotWritableError,
    parse_digest,
    parse_name,
)
from registry.digests import digest_of

Put = Callable[..., bytes]


def blob_files(store: Store) -> set[str]:
    return {path.name for path in (store.root / "blobs").iterdir()}


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


# ---- reading


def test_a_store_that_does_not_exist_is_empty_and_stays_unmade(store: Store) -> None:
    assert store.models() == []
    assert store.find(parse_name("x")) is None
    assert store.prune().n_removed == 0
    assert not store.root.exists()


def test_resolve_gives_all_layers(store: Store, put_model: Put, gguf: bytes) -> None:
    config = {
        "model_format": "gguf",
        "model_family": "llama",
        "model_families": ["llama", "clip"],
        "model_type": "8.0B",
        "file_type": "Q4_K_M",
        "parser": "p",
    }
    layers = [
        ("model", gguf),
        ("projector", b"mm1"),
        ("projector", b"mm2"),
        ("adapter", b"lora"),
        ("draft", b"small"),
        ("prompt", b"legacy template"),
        ("template", b"{{ .Prompt }}"),
        ("system", "sé".encode()),
        ("params", b'{"stop":["a"],"temperature":1}'),
        ("messages", b'[{"role":"user","content":"hi"}]'),
        ("license", b"one"),
        ("license", b"two"),
        ("embed", b"ignored"),
    ]
    raw = put_model("me/Big:8b", layers, config)
    model = store.resolve(parse_name("ME/big:8B"))
    assert model.name == parse_name("me/Big:8b")
    assert model.digest == hashlib.sha256(raw).hexdigest()
    assert model.manifest.raw == raw
    assert [path.read_bytes() for path in model.model_paths] == [gguf]
    assert model.model_digest == hashlib.sha256(gguf).hexdigest()
    assert [path.read_bytes() for path in model.projector_paths] == [b"mm1", b"mm2"]
    assert [path.read_bytes() for path in (*model.adapter_paths, *model.draft_paths)] == [b"lora", b"small"]
    assert (model.template, model.system) == ("{{ .Prompt }}", "sé")
    assert model.params == {"stop": ["a"], "temperature": 1}
    assert model.messages == [{"role": "user", "content": "hi"}]
    assert model.licenses == ["one", "two"]
    assert (model.config.model_family, model.config.model_families) == ("llama", ("llama", "clip"))
    assert (model.config.model_type, model.config.file_type) == ("8.0B", "Q4_K_M")
    assert model.config.fields["parser"] == "p"
    assert model.size == sum(len(content) for _, content in layers) + len(json.dumps(config))
    path = store.root / "manifests/registry.ollama.ai/me/Big/8b"
    assert model.modified_ns == path.stat().st_mtime_ns


def test_split_models_that_begin_alike_are_different_weights(store: Store, put_model: Put) -> None:
    parts = {"a": b"GGUF2", "b": b"GGUF3", "c": b"GGUF2"}
    for name, second in parts.items():
        put_model(name, [("model", b"GGUF1"), ("model", second)])
    a, b, c = (store.resolve(parse_name(name)).model_digest for name in parts)
    assert a == c != b and len(a) == 64


def test_a_split_model_has_its_paths_in_order(store: Store, put_model: Put) -> None:
    put_model("split", [("model", b"GGUF2"), ("model", b"GGUF1")])
    assert [path.read_bytes() for path in store.resolve(parse_name("split")).model_paths] == [b"GGUF2", b"GGUF1"]


def test_models_without_weights_resolve(store: Store, put_model: Put) -> None:
    put_model("remote", [], {"remote_host": "https://h", "remote_model": "m"})
    model = store.resolve(parse_name("remote"))
    assert (model.model_paths, model.model_digest, model.template, model.params) == ((), "", None, {})


def test_a_manifest_without_config_or_layers_is_tolerated(store: Store) -> None:
    for name, raw in {"a": b"{}", "b": b'{"layers":null,"config":{"digest":""}}'}.items():
        store.write_manifest(parse_name(name), raw)
        assert store.resolve(parse_name(name)).config.model_format == ""


def test_list_is_newest_first(store: Store, put_model: Put, gguf: bytes) -> None:
    for name in ("a", "b", "c"):
        put_model(name, [("model", gguf)])
    folder = store.root / "manifests/registry.ollama.ai/library"
    for seconds, name in ((10, "b"), (20, "c"), (30, "a")):
        age(folder / name / "latest", seconds)
    assert [model.name.model for model in store.models()] == ["b", "c", "a"]
    assert store.models()[0] == store.summary(parse_name("b"))


def test_the_store_of_ollama_works_in_place(tmp_path: Path) -> None:
    weights, config = b"GGUFweights", b'{"model_format":"gguf","model_family":"llama","file_type":"Q4_0","unknown":1}'
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for content in (weights, config):
        (blobs / f"sha256-{hashlib.sha256(content).hexdigest()}").write_bytes(content)
    (blobs / f"sha256-{'0' * 64}-partial").write_bytes(b"\0" * 10)
    (blobs / f"sha256-{'0' * 64}-partial-0").write_bytes(b'{"N":0,"Offset":0,"Size":10,"Completed":3}')
    raw = json.dumps(
        {
            "schemaVersion": 2,
            "config": {"mediaType": "x", "digest": digest_of(config), "size": len(config)},
            "layers": [
                {"mediaType": "application/vnd.ollama.image.model", "digest": digest_of(weights), "size": len(weights)}
            ],
        }
    ).encode()
    tag = tmp_path / "manifests/registry.ollama.ai/library/llama3/latest"
    tag.parent.mkdir(parents=True)
    tag.write_bytes(raw)
    store = Store(tmp_path)
    assert [model.name.short for model in store.models()] == ["llama3:latest"]
    assert store.resolve(parse_name("LLAMA3")).model_paths[0].read_bytes() == weights
    assert store.prune().n_removed == 0
    store.copy(parse_name("llama3"), parse_name("mine"))
    store.delete(parse_name("llama3"))
    assert store.manifest(parse_name("mine")).raw == raw
    assert not tag.parent.exists()
    assert store.blobs.has(digest_of(weights))


# ---- damage


HOSTILE = {
    "not JSON": b"{",
    "not an object": b"[]",
    "deep": b"[" * 100_000,
    "layers": b'{"layers":{}}',
    "layer": b'{"layers":[1]}',
    "traversal": b'{"layers":[{"mediaType":"m","size":1,"digest":"sha256:../../../../etc/passwd"}]}',
    "short digest": b'{"layers":[{"size":1,"digest":"sha256:ab"}]}',
    "no digest": b'{"layers":[{"size":1}]}',
    "size": json.dumps({"layers": [{"size": -1, "digest": "sha256:" + "0" * 64}]}).encode(),
    "bool size": json.dumps({"layers": [{"size": True, "digest": "sha256:" + "0" * 64}]}).encode(),
    "config": b'{"config":{"digest":"sha256:x","size":0}}',
    "missing blob": json.dumps({"layers": [{"size": 1, "digest": "sha256:" + "0" * 64}]}).encode(),
    "long": b" " * (16 << 20) + b"{}",
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_bad_manifest_is_refused_before_it_is_written(store: Store, raw: bytes) -> None:
    with pytest.raises(BrokenModelError):
        store.write_manifest(parse_name("bad"), raw)
    assert store.find(parse_name("bad")) is None


@pytest.mark.parametrize("raw", [raw for key, raw in HOSTILE.items() if key != "missing blob"])
def test_a_bad_manifest_on_disk_hides_itself_alone(
    store: Store, put_model: Put, gguf: bytes, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put_model("good", [("model", gguf)])
    path = store.root / "manifests/registry.ollama.ai/library/bad/latest"
    path.parent.mkdir()
    path.write_bytes(raw)
    assert [model.name.model for model in store.models()] == ["good"]
    assert "bad" in caplog.text
    with pytest.raises(BrokenModelError):
        store.resolve(parse_name("bad"))
    store.delete(parse_name("bad"))
    assert store.prune(grace_s=0).skipped == ()
    assert store.resolve(parse_name("good"))


def test_missing_and_truncated_weights_are_noticed(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("m", [("model", gguf)])
    path = store.blobs.path(digest_of(gguf))
    path.write_bytes(gguf[:-1])
    with pytest.raises(BrokenModelError, match="missing or has another size") as caught:
        store.resolve(parse_name("m"))
    assert caught.value.hint == "localllm pull m:latest"
    path.unlink()
    with pytest.raises(BrokenModelError):
        store.resolve(parse_name("m"))


@pytest.mark.parametrize(
    ("kind", "content"), [("params", b"[]"), ("params", b"{"), ("messages", b"{}"), ("messages", b"[1]")]
)
def test_nonsense_in_small_layers(store: Store, put_model: Put, kind: str, content: bytes) -> None:
    put_model("m", [(kind, content)])
    with pytest.raises(BrokenModelError):
        store.resolve(parse_name("m"))


def test_a_text_layer_of_gigabytes_is_not_read(store: Store, put_model: Put) -> None:
    put_model("m", [("template", b"x")])
    size = (16 << 20) + 1
    os.truncate(store.blobs.path(digest_of(b"x")), size)
    with pytest.raises(BrokenModelError, match="longer than"):
        store.resolve(parse_name("m"))


def test_stray_files_among_the_manifests_are_passed_over(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("m", [("model", gguf)])
    folder = store.root / "manifests/registry.ollama.ai/library/m"
    (folder / ".DS_Store").write_bytes(b"x")
    (store.root / "manifests/stray").write_bytes(b"x")
    (folder / "folder").mkdir()
    assert [model.name.short for model in store.models()] == ["m:latest"]
    assert store.prune(grace_s=0).skipped == ()


# ---- digests and blobs


@pytest.mark.parametrize("text", ["", "sha256:", "a" * 64, "md5:" + "a" * 64, "sha256:" + "g" * 64, "sha256:../x"])
def test_digests_are_strict(store: Store, text: str) -> None:
    for use in (parse_digest, store.blobs.path, store.blobs.has, store.blobs.remove):
        with pytest.raises(InvalidDigestError, match=r"^invalid digest format$"):
            use(text)


def test_both_spellings_of_a_digest() -> None:
    assert parse_digest("sha256-" + "A" * 64) == parse_digest("sha256:" + "a" * 64) == "sha256:" + "a" * 64


def test_a_writer_that_is_not_committed_leaves_nothing(store: Store) -> None:
    with store.blobs.writer() as writer:
        writer.write(b"abc")
    assert blob_files(store) == set()
    with pytest.raises(DigestMismatchError) as caught, store.blobs.writer() as writer:
        writer.write(b"abc")
        writer.commit("sha256:" + "0" * 64)
    assert (caught.value.want, caught.value.got) == ("sha256:" + "0" * 64, digest_of(b"abc"))
    assert str(caught.value).startswith("digest mismatch, file must be downloaded again: want sha256:0")
    assert blob_files(store) == set()
    with pytest.raises(RuntimeError), store.blobs.writer() as writer:
        writer.write(b"abc")
        raise RuntimeError
    assert blob_files(store) == set()


def test_a_committed_blob_has_the_name_of_its_bytes(store: Store) -> None:
    with store.blobs.writer() as writer:
        for chunk in (b"a", b"", b"bc"):
            writer.write(chunk)
        digest = writer.commit()
    assert digest == digest_of(b"abc")
    assert store.blobs.path(digest).read_bytes() == b"abc"
    assert blob_files(store) == {digest.replace(":", "-")}
    assert store.blobs.put(b"abc") == (digest, False)


def test_a_truncated_blob_is_replaced_by_a_whole_one(store: Store) -> None:
    digest, _ = store.blobs.put(b"abc")
    store.blobs.path(digest).write_bytes(b"ab")
    assert store.blobs.put(b"abc") == (digest, True)
    assert store.blobs.path(digest).read_bytes() == b"abc"


# ---- names: write, copy, delete


def test_writing_keeps_the_case_that_is_there(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("Me/Foo:V1", [("model", gguf)])
    put_model("me/foo:v1", [("model", gguf), ("system", b"new")])
    put_model("ME/FOO:v2", [("model", gguf)])
    assert sorted(model.name.short for model in store.models()) == ["Me/Foo:V1", "Me/Foo:v2"]
    assert store.resolve(parse_name("me/foo:v1")).system == "new"


def test_write_reports_what_only_the_former_manifest_needed(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("m", [("model", gguf), ("system", b"old")])
    other = put_model("other", [("model", gguf), ("system", b"new")])
    unused = store.write_manifest(parse_name("m"), other)
    assert unused == {digest_of(b"old")}
    assert store.remove_unused(unused) == 1
    assert not store.blobs.has(digest_of(b"old"))


def test_copy_overwrites_and_shares_blobs(store: Store, put_model: Put, gguf: bytes) -> None:
    raw = put_model("a", [("model", gguf)])
    put_model("b", [("model", gguf), ("system", b"only b")])
    store.copy(parse_name("A"), parse_name("b"))
    store.copy(parse_name("a"), parse_name("a"))
    assert store.manifest(parse_name("a")).raw == store.manifest(parse_name("b")).raw == raw
    assert not store.blobs.has(digest_of(b"only b"))
    with pytest.raises(ModelNotFoundError, match=r"^model 'nope:latest' not found$"):
        store.copy(parse_name("nope"), parse_name("c"))


def test_delete_counts_who_else_needs_a_blob(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("a", [("model", gguf), ("system", b"a")])
    put_model("b", [("model", gguf), ("system", b"b")])
    store.delete(parse_name("A"))
    assert store.find(parse_name("a")) is None
    assert store.blobs.has(digest_of(gguf))
    assert not store.blobs.has(digest_of(b"a"))
    store.delete(parse_name("b"))
    assert blob_files(store) == set()
    assert list((store.root / "manifests").iterdir()) == []
    with pytest.raises(ModelNotFoundError):
        store.delete(parse_name("b"))


def test_delete_spares_blobs_while_any_manifest_is_unreadable(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("a", [("model", gguf)])
    put_model("b", [("model", gguf)])
    (store.root / "manifests/registry.ollama.ai/library/b/latest").write_bytes(b"{")
    store.delete(parse_name("a"))
    assert store.blobs.has(digest_of(gguf))


def test_delete_spares_what_a_pull_relies_on(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("a", [("model", gguf)])
    with store.staging("a pull under way") as staging:
        store.pin(staging, [digest_of(gguf)])
        store.delete(parse_name("a"))
        assert store.prune(grace_s=-10).n_removed == 0
        assert store.blobs.has(digest_of(gguf))
    assert store.prune(grace_s=-10).freed_bytes == len(gguf)


# ---- prune


def test_prune_removes_what_nothing_needs_after_a_grace(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("m", [("model", gguf)])
    old, _ = store.blobs.put(b"old")
    store.blobs.put(b"young")
    age(store.blobs.path(old), 3700)
    age(store.blobs.path(digest_of(gguf)), 3700)
    for name, seconds in (("partial", 3700), ("partial-0", 3700), ("partial-1", 3500)):
        path = store.root / "blobs" / f"sha256-{'1' * 64}-{name}"
        path.write_bytes(b"12")
        age(path, seconds)
    (store.root / "blobs" / "notes.txt").write_bytes(b"not ours")
    (store.root / "manifests/h/n/m").mkdir(parents=True)
    report = store.prune()
    assert (report.n_removed, report.freed_bytes, report.skipped) == (4, 9, ())
    assert store.blobs.has(digest_of(b"young")) and store.resolve(parse_name("m"))
    assert not any("-partial" in file for file in blob_files(store)), "parts are as old as their whole"
    assert "notes.txt" in blob_files(store)
    assert not (store.root / "manifests/h").exists()


def test_prune_removes_no_blob_while_a_manifest_is_unreadable(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("m", [("model", gguf)])
    (store.root / "manifests/registry.ollama.ai/library/m/latest").write_bytes(b"nonsense")
    report = store.prune(grace_s=-10)
    assert report.n_removed == 0
    assert len(report.skipped) == 1 and "m/latest" in report.skipped[0]
    assert store.blobs.has(digest_of(gguf))


def test_prune_removes_the_leftovers_of_dead_processes_only(store: Store) -> None:
    store.blobs.put(b"x")
    dead = store.root / "blobs/.staging-dead"
    (dead / "pip/wheels").mkdir(parents=True)
    (dead / "lock").write_bytes(b"")
    (store.root / "manifests").mkdir()
    (store.root / "manifests/.new-0123").write_bytes(b"{}")
    with store.staging("alive") as staging:
        (staging.path / "file").write_bytes(b"1")
        store.prune()
        assert (staging.path / "file").exists()
    assert not dead.exists()
    assert list((store.root / "manifests").iterdir()) == []


def test_prune_renames_the_blobs_of_early_versions(store: Store) -> None:
    store.blobs.put(b"x")
    store.blobs.path(digest_of(b"x")).rename(store.root / "blobs" / digest_of(b"x"))
    store.prune()
    assert store.blobs.has(digest_of(b"x"))


# ---- refusals of the system


def test_a_full_disk_is_foreseen(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoSpaceError, match="no space left on device") as caught:
        store.blobs.writer(expected_bytes=1 << 60)
    assert caught.value.needed_bytes == 1 << 60
    assert caught.value.free_bytes is not None
    assert "localllm rm" in (caught.value.hint or "")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="permissions do not bind root")
def test_a_store_of_another_user_reads_but_does_not_write(store: Store, put_model: Put, gguf: bytes) -> None:
    put_model("m", [("model", gguf)])
    folders = [path for path in (store.root, *store.root.rglob("*")) if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    (store.root / "localllm.lock").chmod(0o444)
    try:
        assert store.resolve(parse_name("m"))
        for change in (lambda: store.delete(parse_name("m")), lambda: store.blobs.put(b"new"), store.prune):
            with pytest.raises(StoreNotWritableError):
                change()
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_a_refusal_to_write_is_a_clear_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    store.root.mkdir()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreNotWritableError, match="cannot write to the model store") as caught:
        store.delete(parse_name("m"))
    assert "LOCALLLM_MODELS" in (caught.value.hint or "")


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_where_the_store_should_be_is_a_clear_error(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / below)
    assert store.models() == []
    with pytest.raises(ModelNotFoundError):
        store.resolve(parse_name("m"))
    for change in (lambda: store.delete(parse_name("m")), lambda: store.blobs.put(b"x")):
        with pytest.raises(StoreNotWritableError, match=r"file.*(Not a directory|File exists)") as caught:
            change()
        assert "LOCALLLM_MODELS" in (caught.value.hint or "")

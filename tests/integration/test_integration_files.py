"""Model files as they come: damaged, padded, split; and a store whose disk is full."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest

pytestmark = pytest.mark.integration
Model = Callable[[str], str]
MakeModel = Callable[[str], Path]
REASON = re.compile(r"(?i)truncat|corrupt|not a gguf|end of file|permission|directory|not a file")
SCRIPTED = "Once upon a time"
TEXTS = {"lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "html": b"<!DOCTYPE html><html>"}


def refusal(server: Any, path: Path) -> str:
    """The error text of a pull that must fail, the same streamed and not, and leave no trace."""
    before = server.names(), server.blobs()
    response = server.http.post("/api/pull", json={"model": f"file:{path}", "stream": False})
    assert 400 <= response.status_code <= 599
    error: str = response.json()["error"]
    streamed = server.http.post("/api/pull", json={"model": f"file:{path}"}).text.splitlines()
    assert json.loads(streamed[-1])["error"] == error
    assert (server.names(), server.blobs()) == before
    return error


def places(raw: bytes) -> dict[str, int]:
    """Lengths that end a tiny model amid its keys, amid its tensor infos, and after its header."""
    first = raw.index(b"token_embd.weight")
    end = raw.rindex(b"output.weight") + len(b"output.weight") + struct.calcsize("<IQQIQ")
    return {"keys": first // 2, "infos": (first + end) // 2, "header": end, "tail": len(raw) - 1, "page": -4096}


@pytest.mark.parametrize("cut", [0, 3, 4, 8, 24, "keys", "infos", "header", "tail", "page", "lfs", "html"])
def test_damaged_files_are_refused_by_name(
    server: Any, model: Model, gguf: MakeModel, tmp_path: Path, cut: int | str
) -> None:
    raw = gguf("random").read_bytes()
    path = tmp_path / "m.gguf"
    length = cut if isinstance(cut, int) else places(raw).get(cut)
    path.write_bytes(TEXTS.get(str(cut)) or raw[:length])
    server.post("/api/generate", {"model": model("story")})
    error = refusal(server, path)
    assert str(path) in error and REASON.search(error)
    if cut in TEXTS:
        assert "not a GGUF file" in error and TEXTS[str(cut)][:8].decode() in error
    assert server.post("/api/generate", {"model": "story", "prompt": "x"})["response"] == SCRIPTED


def test_directories_missing_and_unreadable_files_are_refused(server: Any, gguf: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "dir.gguf").mkdir()
    for name in ("dir.gguf", "none.gguf"):
        assert name in refusal(server, tmp_path / name)
    assert "absolute" in server.refused("/api/pull", {"model": "file:m.gguf"}, 500)
    if os.getuid() != 0:
        closed = tmp_path / "closed.gguf"
        closed.write_bytes(gguf("random").read_bytes())
        closed.chmod(0)
        assert re.search("permission", refusal(server, closed), re.IGNORECASE)


def test_unknown_architectures_fail_at_load_by_name(server: Any, tiny_models: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "strange.gguf"
    over = {"general.architecture": ("general.architecture", tiny_models.STRING, "martian")}
    tiny_models.random_model(path, over=over)
    server.add(path)
    error = server.refused("/api/generate", {"model": "strange", "prompt": "x"}, 500)
    assert "martian" in error and "llama" in error
    assert server.http.request("DELETE", "/api/delete", json={"model": "strange"}).status_code == 200


def test_bytes_after_the_end_do_no_harm(server: Any, gguf: MakeModel, tmp_path: Path) -> None:
    path = tmp_path / "padded.gguf"
    path.write_bytes(gguf("story").read_bytes() + bytes(1000))
    assert server.post("/api/generate", {"model": server.add(path), "prompt": "x"})["response"] == SCRIPTED


def test_a_blob_damaged_in_the_store_fails_at_load(start_server: Callable[..., Any], gguf: MakeModel) -> None:
    server = start_server()
    name = server.add(gguf("random"))
    for blob in (server.models / "blobs").glob("sha256-*"):
        if blob.stat().st_size > 100_000:
            content = blob.read_bytes()
            blob.unlink()
            blob.write_bytes(content[:-5000])
    error = server.http.post("/api/generate", json={"model": name, "prompt": "x"})
    assert error.status_code >= 400 and error.json()["error"]
    assert server.post("/api/generate", {"model": server.add(gguf("story")), "prompt": "x"})["response"] == SCRIPTED
    server.add(gguf("random"))
    assert server.post("/api/generate", {"model": name, "prompt": "x"})["done"]


def test_logits_that_are_no_numbers_end_their_request_alone(
    server: Any, tiny_models: ModuleType, tmp_path: Path
) -> None:
    tiny, path = tiny_models, tmp_path / "nan.gguf"
    tokens, types = tiny.bpe_vocab()
    rng = np.random.default_rng(1)
    embd, output = (rng.normal(0, 1, (len(tokens), 64)).astype(np.float32) for _ in range(2))
    embd[ord("!")] = np.nan
    tiny.write_gguf(path, tiny.llama_metadata(64, 1, 4096, tokens, types), tiny.llama_tensors(embd, output, seed=1))
    body = {"model": server.add(path), "raw": True, "options": {"num_predict": 40, "temperature": 0, "num_ctx": 128}}
    good = {**body, "prompt": "ab" * 20}
    expected = server.post("/api/generate", good)["response"]
    runners = server.runners()
    for n in (1, 30, 100):
        # What it leaves in the KV cache must not reach those who get its place there.
        error = server.refused("/api/generate", {**body, "prompt": "ab" * 10 + "!" * n}, 500)
        assert "logits" in error and "internal error" not in error
        for i in range(12):
            assert server.post("/api/generate", {**body, "prompt": f"{i} other"})["done"] is True
        assert server.post("/api/generate", good)["response"] == expected
    assert server.runners() == runners


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(100000000) %}x{% endfor %}",
        "{{ raise_exception('only even turns') }}",
        "{{ messages[0].nothing.more }}",
        "{% for m in messages %}{{ m.content }",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_a_bad_template_in_the_file_is_the_requests_error(
    server: Any, tiny_models: ModuleType, tmp_path: Path, template: str
) -> None:
    path = tmp_path / "template.gguf"
    tiny_models.script_model(path, ["ok"], tmpl=template)
    body = {"model": server.add(path), "messages": [{"role": "user", "content": "x"}], "stream": False}
    response = server.http.post("/api/chat", json=body)
    assert response.status_code == 400 and response.json()["error"]
    raw = {"model": "template", "raw": True, "prompt": "<|assistant|>", "options": {"temperature": 0}}
    assert server.post("/api/generate", raw)["response"] == "ok"
    assert server.http.request("DELETE", "/api/delete", json={"model": "template"}).status_code == 200


def test_a_name_pulled_again_is_the_new_file(server: Any, gguf: MakeModel, tmp_path: Path) -> None:
    path = tmp_path / "renewed.gguf"
    for source, text in (("story", SCRIPTED), ("utf8", "🦙щ你!"), ("story", SCRIPTED)):
        path.unlink(missing_ok=True)
        path.write_bytes(gguf(source).read_bytes())
        assert server.post("/api/generate", {"model": server.add(path), "prompt": "x"})["response"] == text


def test_a_store_that_is_no_folder(start_server: Callable[..., Any], gguf: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = start_server(models=tmp_path / "file")
    error = server.refused("/api/pull", {"model": f"file:{gguf('story')}"}, 500)
    assert str(tmp_path / "file") in error
    assert server.http.get("/api/tags").json() == {"models": []}


# ---- split models


def write_parts(tiny: ModuleType, folder: Path, seed: int = 0, count: int = 3) -> list[Path]:
    """The model "random" in parts; all metadata is in the first."""
    tokens, types = tiny.bpe_vocab()
    rng = np.random.default_rng(seed)
    embd, output = rng.normal(0, 1, (len(tokens), 64)), rng.normal(0, 0.3, (len(tokens), 64))
    tensors = tiny.llama_tensors(embd, output, seed=seed + 1)
    paths = []
    for i in range(count):
        head = tiny.llama_metadata(64, 1, 4096, tokens, types) if i == 0 else []
        keys = [("split.no", tiny.U16, i), ("split.count", tiny.U16, count)]
        keys.append(("split.tensors.count", tiny.I32, len(tensors)))
        paths.append(folder / f"t-{i + 1:05d}-of-{count:05d}.gguf")
        tiny.write_gguf(paths[-1], [*head, *keys], tensors[i * 12 // count : (i + 1) * 12 // count])
    return paths


def greedy(server: Any, name: str) -> str:
    options = {"temperature": 0, "num_predict": 32, "ignore_eos": True}
    answer: str = server.post("/api/generate", {"model": name, "prompt": "split", "options": options})["response"]
    return answer


@pytest.mark.parametrize("begin", [0, 1])
def test_a_split_model_is_the_whole_one(
    server: Any, model: Model, tiny_models: ModuleType, tmp_path: Path, begin: int
) -> None:
    parts = write_parts(tiny_models, tmp_path)
    expected = greedy(server, model("random"))
    before = server.blobs()
    server.post("/api/pull", {"model": f"file:{parts[begin]}"})
    new_bytes = sorted((server.models / "blobs" / name).stat().st_size for name in server.blobs() - before)
    assert new_bytes[-3:] == sorted(part.stat().st_size for part in parts)
    assert greedy(server, "t") == expected
    sizes = {m["name"]: m["size"] for m in server.http.get("/api/tags").json()["models"]}
    assert sizes["t:latest"] >= sum(part.stat().st_size for part in parts)
    shown, whole = (server.post("/api/show", {"model": name}) for name in ("t", "random"))
    assert shown["model_info"]["general.parameter_count"] == whole["model_info"]["general.parameter_count"]
    assert shown["details"]["parameter_size"] == whole["details"]["parameter_size"]
    assert server.http.request("DELETE", "/api/delete", json={"model": "t"}).status_code == 200
    assert server.blobs() == before


def test_a_model_in_one_part(server: Any, model: Model, tiny_models: ModuleType, tmp_path: Path) -> None:
    (part,) = write_parts(tiny_models, tmp_path, count=1)
    server.post("/api/pull", {"model": f"file:{part}"})
    assert greedy(server, "t") == greedy(server, model("random"))
    server.http.request("DELETE", "/api/delete", json={"model": "t"})


@pytest.mark.parametrize("fault", ["missing", "foreign", "double", "pointer"])
def test_wrong_parts_are_named(server: Any, tiny_models: ModuleType, tmp_path: Path, fault: str) -> None:
    parts = write_parts(tiny_models, tmp_path)
    (tmp_path / "other").mkdir()
    culprit = parts[1]
    if fault == "missing":
        culprit.unlink()
    elif fault == "foreign":
        write_parts(tiny_models, tmp_path / "other", count=2)[1].replace(culprit)
    elif fault == "double":
        culprit = parts[2]
        culprit.write_bytes(parts[1].read_bytes())
    else:
        culprit.write_bytes(TEXTS["lfs"])
    assert culprit.name in refusal(server, parts[0])


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mount)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root may mount")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_leaves_the_store_as_it_was(
    start_server: Callable[..., Any], gguf: MakeModel, tiny_models: ModuleType, small_disk: Path, tmp_path: Path
) -> None:
    server = start_server(models=small_disk / "models")
    assert server.add(gguf("random")) == "random"
    before = server.names(), server.blobs()
    big = tmp_path / "big.gguf"
    tiny_models.script_model(big, ["a", "b"])
    with big.open("ab") as file:
        file.write(bytes(4 << 20))
    error = server.refused("/api/pull", {"model": f"file:{big}"}, 500)
    assert re.search("(?i)space|disk", error)
    assert (server.names(), server.blobs()) == before
    assert greedy(server, "random") and psutil.pid_exists(server.process.pid)

    filler = small_disk / "filler"
    with pytest.raises(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    error = server.refused("/api/pull", {"model": f"file:{gguf('story')}"}, 500)
    assert re.search("(?i)space|disk", error)
    assert (server.names(), server.blobs()) == before and greedy(server, "random")
    filler.unlink()
    assert server.add(gguf("other")) in server.names()[0]

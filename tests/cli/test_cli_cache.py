"""`localllm cache`: what it lists, what it removes, what it refuses; no server is asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernels_cpu import cache_files
from registry import ModelFacts, Store, parse_name
from registry.create import ModelContents, create_from_gguf

Cli = Callable[..., Any]


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_models: ModuleType) -> str:
    """Of the weights of `m:latest`, the only model in the store."""
    monkeypatch.setenv("LOCALLLM_HOST", "127.0.0.1:1")
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALLLM_MODELS", str(tmp_path / "models"))
    store = Store(tmp_path / "models")
    tiny_models.script_model(tmp_path / "m.gguf", ["a"])
    blob, _ = store.blobs.put((tmp_path / "m.gguf").read_bytes())
    for _ in create_from_gguf(store, parse_name("m"), ModelContents([blob], ModelFacts("llama", 1, "F32"))):
        pass
    return blob.removeprefix("sha256:")


@pytest.fixture
def filled(digest: str, tmp_path: Path) -> Path:
    """A cache folder with weights of the model and of one that is gone, stale and used kernels, a tokenizer, two pages
    of prompts of the model."""
    folder = tmp_path / "cache"
    weights = [cache_files.packed_path(folder, key) for key in (digest, "feed" * 16)]
    kernels = [folder / "kernels" / key for key in ("1234567890abcdef", "fedcba0987654321")]
    tokenizer = folder / "tokenizers" / "00.bin"
    for path, n_bytes in ((weights[0], 98_000_000), (weights[1], 5_000_000), (tokenizer, 2_000)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, n_bytes)
    for path in kernels:
        path.mkdir(parents=True)
        (path / "k.nbc").write_bytes(bytes(3000))
    (kernels[0] / "code").write_text(cache_files.code_digest())
    pages = [folder / "prefixes" / f"{digest}-00" / name for name in ("12-34.kv", "34-56.kv")]
    pages[0].parent.mkdir(parents=True)
    (pages[0].parent / "code").write_text(cache_files.code_digest())
    for path in pages:
        path.write_bytes(bytes(500))
    for age_s, path in enumerate([*weights, *kernels, tokenizer, *pages]):
        os.utime(path, (time.time() - 7200 - age_s,) * 2)
    return folder


def kinds(folder: Path) -> list[str]:
    return [entry.kind for entry in cache_files.entries(folder)]


def test_the_list(filled: Path, cli: Cli, digest: str) -> None:
    result = cli("cache")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "KIND          MODEL       ID              SIZE      USED           STATE\n"
        f"weights       m:latest    {digest[:12]}    98 MB     2 hours ago\n"
        "weights       -           feedfeedfeed    5 MB      2 hours ago\n"
        "kernels                   1234567890ab    3.1 KB    2 hours ago\n"
        "kernels                   fedcba098765    3 KB      2 hours ago    stale\n"
        "tokenizers                00              2 KB      2 hours ago\n"
        f"prefixes      m:latest    {digest[:12]}    1 KB      2 hours ago\n"
        "total                                     103 MB\n"
    )


def test_a_folder_that_waits_for_its_first_page_is_not_listed(filled: Path, cli: Cli, digest: str) -> None:
    before = cli("cache").out
    (filled / "prefixes" / f"{'b' * len(digest)}-00").mkdir()
    assert cli("cache").out == before


def test_the_list_of_nothing(digest: str, cli: Cli) -> None:
    assert cli("cache").out.splitlines()[1].split() == ["total", "0", "B"]


def test_prune_removes_what_is_stale_or_too_much(filled: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_WEIGHT_CACHE_MAX", "100MB")
    assert cli("cache", "prune").out == "removed 2 of 2, 5.0 MB\n"
    assert kinds(filled) == ["weights", "kernels", "tokenizers", "prefixes"]
    monkeypatch.setenv("LOCALLLM_KV_DISK", "900")
    assert cli("cache", "prune").out == "removed 1 of 1, 500 B\n"


def test_clear(filled: Path, cli: Cli) -> None:
    assert cli("cache", "clear", "--kernels", "--tokenizers").out == "removed 3 of 3, 8.1 KB\n"
    assert kinds(filled) == ["weights", "weights", "prefixes"]
    assert cli("cache", "clear", "--prefixes").out == "removed 1 of 1, 1 KB\n"
    assert cli("cache", "clear").out == "removed 2 of 2, 103 MB\n"
    assert kinds(filled) == []
    assert cli("cache", "clear").out == "removed 0 of 0, 0 B\n"


@pytest.mark.parametrize("options", [[], ["--weights", "--prefixes"]])
def test_clear_of_a_model(filled: Path, cli: Cli, options: list[str]) -> None:
    assert cli("cache", "clear", "m", *options).out == "removed 2 of 2, 98 MB\n"
    assert cli("cache", "clear", "FEEDFEED").out == "removed 1 of 1, 5 MB\n"
    assert kinds(filled) == ["kernels", "kernels", "tokenizers"]


@pytest.mark.parametrize(("option", "left"), [("--weights", "prefixes"), ("--prefixes", "weights")])
def test_clear_of_a_kind_of_a_model(filled: Path, cli: Cli, option: str, left: str, digest: str) -> None:
    cli("cache", "clear", "m", option)
    assert [entry.kind for entry in cache_files.entries(filled) if entry.key == digest] == [left]


def test_what_is_in_use_is_told(filled: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_files, "_is_held", lambda path: path.name.startswith("1234"))
    out = cli("cache", "clear", "--kernels").out
    assert out == "removed 1 of 2, 3 KB\nleft 1 that are in use or cannot be removed\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["bogus"], 'unknown action "bogus"'),
        (["prune", "m"], "models and kinds are for `localllm cache clear`"),
        (["list", "--weights"], "models and kinds are for `localllm cache clear`"),
        (["clear", "m", "--kernels"], "of a single model only weights and prefixes are kept: name no other kind"),
        (["clear", "nope"], "model 'nope' not found"),
        (["clear", "m:n:o"], "invalid model name"),
    ],
)
def test_what_is_refused(filled: Path, cli: Cli, arguments: list[str], error: str) -> None:
    result = cli("cache", *arguments)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"Error: {error}")
    assert len(kinds(filled)) == 6

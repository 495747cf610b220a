"""`localllm warmup`: what its child is asked for, what it tells, how it fails; the child is a script here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localllm.cli import warmup
from registry import ModelFacts, Store, parse_name
from registry.create import ModelContents, create_from_gguf

Cli = Callable[..., Any]
SUCCESS = """
print(json.dumps({"status": "compiling kernels", "completed": 0, "total": 2}), flush=True)
print(json.dumps({"status": "compiling kernels", "completed": 2, "total": 2}), flush=True)
print(json.dumps({"note": "2 kernels are ready"}), flush=True)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_models: ModuleType) -> Callable[..., Any]:
    """child(script, *names): a store with models, and a child that runs a script after writing down its request.

    Gives a function that reads the request.
    """
    monkeypatch.setenv("LOCALLLM_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "cache"))

    def make(script: str, *names: str) -> Callable[[], Any]:
        store = Store(tmp_path / "models")
        for name in names:
            tiny_models.script_model(tmp_path / "m.gguf", [name])
            blob, _ = store.blobs.put((tmp_path / "m.gguf").read_bytes())
            facts = ModelFacts("llama", 1, "F32")
            for _ in create_from_gguf(store, parse_name(name), ModelContents([blob], facts)):
                pass
        request = tmp_path / "request"
        before = f"import json, os, sys\nopen({str(request)!r}, 'w').write(sys.stdin.readline())\n"
        monkeypatch.setattr(warmup, "COMMAND", (sys.executable, "-c", before + script))
        return lambda: json.loads(request.read_text())

    return make


def test_a_model_by_name(child: Any, cli: Cli, tmp_path: Path) -> None:
    request = child(SUCCESS, "a", "b")
    result = cli("warmup", "a")
    assert (result.code, result.out, result.err) == (0, "2 kernels are ready\n", "compiling kernels\n")
    sent = request()
    (model,) = sent.pop("models")
    cache_dir = str(tmp_path / "cache")
    assert sent == {"all": False, "repack": True, "cache_dir": cache_dir, "kv_cache_type": "f16"}
    assert model["name"] == "a:latest" and Path(model["paths"][0]).name == f"sha256-{model['digest']}"


def test_without_names_all_models_are_meant_and_no_weights(child: Any, cli: Cli) -> None:
    request = child(SUCCESS, "a", "b")
    assert cli("warmup").code == 0
    assert request()["repack"] is False and {m["name"] for m in request()["models"]} == {"a:latest", "b:latest"}


def test_all_needs_no_model(child: Any, cli: Cli) -> None:
    request = child(SUCCESS)
    assert cli("warmup", "--all").code == 0
    assert request()["all"] is True and request()["models"] == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "there are no models to warm up"),
        (["x"], "model 'x:latest' not found"),
        (["x", "--all"], "either models or --all"),
    ],
)
def test_what_is_refused(child: Any, cli: Cli, arguments: list[str], error: str) -> None:
    child("sys.exit(7)")
    result = cli("warmup", *arguments)
    assert (result.code, result.out) == (1, "") and result.err.startswith(f"Error: {error}\n")


def test_an_error_of_the_child_is_passed_on(child: Any, cli: Cli) -> None:
    child('print(json.dumps({"error": "unsupported", "hint": "another"}), flush=True); sys.exit(1)', "a")
    result = cli("warmup", "a")
    assert (result.code, result.out, result.err) == (1, "", "Error: unsupported\nhint: another\n")


def test_a_child_that_dies_is_told(child: Any, cli: Cli) -> None:
    child('print("no room", file=sys.stderr); sys.exit(3)', "a")
    result = cli("warmup", "a")
    assert result.code == 1 and result.err == "Error: warming up failed (exit status 3): no room\n"


def test_an_interrupt_ends_the_child(child: Any, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    child('print(json.dumps({"pid": os.getpid()}), flush=True); sys.stdin.read(); sys.stdin.read()', "a")
    pids = []

    def interrupt(updates: Any) -> None:
        pids.append(next(updates)["pid"])
        raise KeyboardInterrupt

    monkeypatch.setattr(warmup, "show_progress", interrupt)
    assert cli("warmup", "a").code == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)

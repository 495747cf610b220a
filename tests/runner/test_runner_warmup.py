"""Warming up compiles and repacks without loading; its process speaks JSON and ends with its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernels_cpu.cache_files import packed_path
from kernels_cpu.compile import constraint_kernels, every_kernel
from kernels_cpu.quants.table import QUANT_TYPES
from localllm.errors import UnsupportedModelError
from localllm.runner.warmup import Warmup


@pytest.fixture
def model(tmp_path: Path, tiny_models: ModuleType) -> dict[str, Any]:
    tiny_models.script_model(tmp_path / "m.gguf", ["a"])
    return {"name": "m", "paths": [str(tmp_path / "m.gguf")], "digest": "0ab1"}


@pytest.fixture
def other(tmp_path: Path, tiny_models: ModuleType) -> dict[str, Any]:
    """One of an architecture that is not supported."""
    tiny_models.bert_model(tmp_path / "other.gguf", over=[("general.architecture", tiny_models.STRING, "foo")])
    return {"name": "other", "paths": [str(tmp_path / "other.gguf")], "digest": "ffff"}


def run(warmup: Warmup) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    warmup.run(sent.append)
    return sent


def test_a_named_model_has_its_weights_repacked(model: dict[str, Any], tmp_path: Path) -> None:
    sent = run(Warmup([model], True, False, str(tmp_path / "cache"), "f16"))
    assert packed_path(tmp_path / "cache", "0ab1").exists()
    done = [m for m in sent if m.get("status") == "repacking weights"]
    assert done[-1]["completed"] == done[-1]["total"] > 0
    assert sent[-1]["note"].endswith(" kernels are ready for 1 model, and their weights")
    assert all(kernel.is_cached() for kernel in constraint_kernels())
    again = run(Warmup([model], True, False, str(tmp_path / "cache"), "f16"))
    assert [list(m) for m in again] == [["note"]]


def test_adapters_need_kernels_of_their_own(model: dict[str, Any], tmp_path: Path) -> None:
    counts = []
    for has_adapters in (False, True):
        warmup = Warmup([{**model, "has_adapters": has_adapters}], False, False, str(tmp_path / "cache"), "f16")
        counts.append(int(run(warmup)[-1]["note"].split()[0]))
    assert counts[1] == counts[0] + 3


def test_in_passing_nothing_is_repacked_and_no_model_is_an_error(
    model: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    sent = run(Warmup([other, model], False, False, str(tmp_path / "cache"), "f16"))
    assert not (tmp_path / "cache").exists()
    notes = [m["note"] for m in sent if "note" in m]
    assert notes[0].startswith("passed over 'other': unsupported architecture") and "for 1 model" in notes[1]


def test_a_named_model_that_cannot_run_is_an_error(other: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError):
        run(Warmup([other], True, False, str(tmp_path / "cache"), "f16"))


def test_every_kernel_is_known() -> None:
    names = {k.name for k in every_kernel()}
    assert {k.name for q in QUANT_TYPES.values() for k in (q.linear, q.linear_16, q.embedding)} < names
    assert {
        "kernels_cpu.ops.attention:attention",
        "kernels_cpu.team:_follow",
        "kernels_cpu.automata.ask:ask",
    } < names


def start(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "localllm.runner.warmup_main"]
    pipe = subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
    assert child.stdin is not None
    child.stdin.write(json.dumps(request).encode() + b"\n")
    child.stdin.flush()
    return child


def test_the_process_tells_errors_as_json(other: dict[str, Any], tmp_path: Path) -> None:
    request = {"models": [other], "repack": True, "all": False, "cache_dir": str(tmp_path), "kv_cache_type": "f16"}
    child = start(request)
    assert child.stdout is not None and child.stderr is not None and child.stdin is not None
    lines = [json.loads(line) for line in child.stdout]
    assert child.wait(60) == 1 and lines[0] == {"status": "starting"}
    assert lines[-1]["error"].startswith("unsupported architecture") and lines[-1]["hint"]
    for stream in (child.stdin, child.stdout, child.stderr):
        stream.close()


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    child = start({"models": [], "repack": False, "all": True, "cache_dir": str(tmp_path), "kv_cache_type": "f16"})
    assert child.stdin is not None
    child.stdin.close()
    child.stdin = None
    _, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (1, b"")

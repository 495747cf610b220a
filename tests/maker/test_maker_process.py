"""`python -m localllm.maker` as a process: what it is told and tells, and how it ends."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from localllm.gguf.summary import read_summary

ROOT = Path(__file__).parents[2]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Any:
    """start(job): the process, its input still open; killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(job: dict[str, Any]) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "localllm.maker"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env)
        assert process.stdin is not None
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        process.wait()


def answers(process: "subprocess.Popen[bytes]") -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(line) for line in process.stdout]


def test_a_model_is_quantized(start: Start, tiny_models: ModuleType, tmp_path: Path) -> None:
    tiny_models.random_model(tmp_path / "m.gguf")
    job = {"job": "quantize", "sources": [str(tmp_path / "m.gguf")], "destination": str(tmp_path / "q.gguf")}
    *progress, last = answers(start({**job, "preset": "F16"}))
    assert last == {"done": True} and progress[-1]["completed"] == progress[-1]["total"] > 0
    assert read_summary(tmp_path / "q.gguf").file_type == "F16"


@pytest.mark.parametrize(
    ("job", "error"),
    [
        ({"job": "quantize", "sources": ["/none.gguf"], "preset": "Q8_0"}, "/none.gguf: cannot be read"),
        ({"job": "convert_model", "directory": "."}, "config.json"),
    ],
)
def test_what_cannot_be_done_is_told(start: Start, tmp_path: Path, job: dict[str, Any], error: str) -> None:
    if "directory" in job:
        job = {**job, "directory": str(tmp_path)}
    (last,) = answers(start({**job, "destination": str(tmp_path / "x")}))
    assert error in last["error"]
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a pipe that blocks a reader")
def test_it_ends_with_its_input_and_lets_others_go_first(start: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")  # who reads that waits for ever
    process = start({"job": "convert_model", "directory": str(tmp_path), "destination": str(tmp_path / "x")})
    deadline = time.monotonic() + 20
    while psutil.Process(process.pid).nice() <= psutil.Process().nice() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert psutil.Process(process.pid).nice() > psutil.Process().nice()
    assert process.poll() is None and process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 1

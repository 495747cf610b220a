"""Runs the programs of `scripts/` as a user does, on a tiny model that one of them makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ENV = os.environ | {"PYTHONPATH": str(ROOT)}

# llama.cpp's programs, as far as the benchmarks know them: each notes its arguments and answers with one speed.
PEER = """#!{python}
import json, sys
from pathlib import Path
with (Path(__file__).parent / "calls.jsonl").open("a") as log:
    log.write(json.dumps([Path(__file__).name, *sys.argv[1:]]) + "\\n")
print({answer!r})
"""
ANSWERS = {
    "llama-bench": '[\n  {"n_prompt": 0, "avg_ts": 50.0}\n]',
    "llama-batched-bench": '\n{"pp": 128, "speed_pp": 9.0, "speed_tg": 80.0}',
    "llama-quantize": "",
}


def _run(program: str, *args: str | Path) -> str:
    command = [sys.executable, str(ROOT / "scripts" / program), *map(str, args)]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def run_script() -> Callable[..., str]:
    """run_script("bench", arguments...): what the program printed."""
    return _run


@pytest.fixture(scope="session")
def run_bench() -> Callable[..., dict[str, Any]]:
    """As run_script, for a benchmark: the JSON in its last line."""
    return lambda program, *args: json.loads(_run(program, *args).splitlines()[-1])


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers 64 wide, F16, 2 heads of keys and values of 16 elements."""
    folder = tmp_path_factory.mktemp("model")
    sizes = {"layers": 2, "embd": 64, "ff": 96, "heads": 4, "heads-kv": 2, "vocab": 300}
    _run("make-bench-model", folder, "--name", "tiny", *(f"--{key}={value}" for key, value in sizes.items()))
    return folder / "tiny-F16.gguf"


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs that stand for llama.cpp's; `calls.jsonl` says how they were called."""
    folder = tmp_path_factory.mktemp("peer")
    for name, answer in ANSWERS.items():
        program = folder / name
        program.write_text(PEER.format(python=sys.executable, answer=answer))
        program.chmod(0o755)
    return folder

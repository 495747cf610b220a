"""npm's `ollama` and `ai-sdk-ollama` against the daemon with scripted runners; npm's registry must be within reach."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NODE, NPM = shutil.which("node"), shutil.which("npm")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not (NODE and NPM), reason="node or npm is not installed"),
]
Add = Callable[..., None]

SCRIPTS = Path(__file__).with_name("npm")
PACKAGES = ("ollama@0.6", "ai-sdk-ollama@4", "ai@7", "zod@4")
INSTALL = ("install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix")
JINJA = (
    "<think></think>{% if tools %}{{ tools }}{% endif %}"
    "{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages and the scripts."""
    path = tmp_path_factory.mktemp("npm")
    shutil.copytree(SCRIPTS, path, dirs_exist_ok=True)
    run = subprocess.run([NPM or "", *INSTALL, str(path), *PACKAGES], capture_output=True, text=True, timeout=280)
    if run.returncode:
        pytest.skip(f"npm cannot install the packages: {run.stderr[-500:]}")
    return path


def answers(folder: Path, script: str, url: str) -> dict[str, Any]:
    run = subprocess.run([NODE or "", script, url], cwd=folder, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout))


def test_ollama(folder: Path, start_live: Callable[..., Any], add_model: Add) -> None:
    add_model("m", jinja=JINJA)
    assert answers(folder, "ollama.mjs", start_live().url) == {
        "version": "0.33.0",
        "chat": "one ",
        "stream": ["one ", "two ", ""],
        "done": True,
        "generate": ["one ", "two ", ""],
        "thinking": "hm",
        "call": {"index": 0, "name": "add", "arguments": {"a": 1}},
        "loaded": ["m:latest"],
        "embeddings": 2,
        "show": ["completion", "tools", "thinking"],
        "created": "success",
        "copied": "success",
        "deleted": "success",
        "listed": ["c:latest", "m:latest"],
        "missing": {"status": 404, "message": "model 'nope' not found"},
        "broken": {"status": None, "message": "scripted error"},
    }


def test_ai_sdk(folder: Path, start_live: Callable[..., Any], add_model: Add) -> None:
    add_model("m", jinja=JINJA)
    found = answers(folder, "ai_sdk.mjs", start_live().url)
    assert found.pop("embedding") > 1
    assert found == {
        "text": "one two ",
        "reason": "stop",
        "usage": [2, 2],
        "stream": "one two ",
        "call": [["add", {"a": 1}]],
    }

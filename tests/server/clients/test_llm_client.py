"""The command `llm` with its plugin `llm-ollama` against the daemon: prompts, chats, tools, schemas, embeddings."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(importlib.util.find_spec("llm_ollama") is None, reason="llm-ollama is not installed"),
]
Run = Callable[..., str]

TOOL = '''
def add(a: int) -> int:
    """Adds one."""
    return a + 1
'''


@pytest.fixture
def llm(url: str, tmp_path: Path) -> Run:
    """llm(*arguments, status=0): what the command prints; with another status, what it complains of."""
    env = {**os.environ, "OLLAMA_HOST": url, "LLM_USER_PATH": str(tmp_path / "llm"), "LLM_LOAD_PLUGINS": "llm-ollama"}

    def run(*arguments: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


def test_models(llm: Run) -> None:
    assert "Ollama: ollama/m:latest" in llm("models")
    assert "m:latest" in llm("ollama", "models")


def test_prompts(llm: Run) -> None:
    assert llm("-m", "ollama/m:latest", "one two") == "one two \n"
    assert llm("-m", "ollama/m", "--no-stream", "one two") == "one two \n"
    asked = json.loads(
        llm("-m", "ollama/m", "-s", "be brief", "-o", "temperature", "0", "-o", "num_ctx", "99", "!request")
    )
    assert [message["role"] for message in asked["messages"]] == ["system", "user"]
    assert (asked["options"]["temperature"], asked["options"]["num_ctx"]) == (0, 99)
    asked = json.loads(llm("-c", "!request"))
    assert [message["role"] for message in asked["messages"]] == ["system", "user", "assistant", "user"]


def test_tools(llm: Run) -> None:
    # The model calls the function; its result is the next prompt, which the model repeats.
    assert llm("-m", "ollama/m", "--functions", TOOL, "!call").strip() == "2"


def test_schemas(llm: Run) -> None:
    asked = json.loads(llm("-m", "ollama/m", "--schema", "a int", "!request"))
    assert asked["format"]["properties"] == {"a": {"type": "integer"}}


def test_embeddings(llm: Run, add_model: Callable[..., None]) -> None:
    add_model("e", kind="bert")
    assert json.loads(llm("embed", "-m", "ollama/e:latest", "-c", "ab"))[0] == 2.0


def test_errors(llm: Run) -> None:
    assert "scripted error" in llm("-m", "ollama/m", "one !error:RequestError", status=1)

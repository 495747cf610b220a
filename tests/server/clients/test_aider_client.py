"""The command `aider` against the daemon: it asks for an edit, and makes the edit that the model answers.

Its requirements name versions of nearly everything, so that it cannot be in the extra `clients`: PYTHON_WITH_AIDER
names the interpreter of an environment of its own (`pip install aider-chat`), unless aider is installed beside these
tests.
"""

import base64
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PYTHON = os.environ.get("PYTHON_WITH_AIDER") or (sys.executable if importlib.util.find_spec("aider") else "")
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not PYTHON, reason="aider-chat is not installed, and PYTHON_WITH_AIDER names no other Python"),
]
Run = Callable[..., str]

OPTIONS = (
    *("--no-git", "--yes-always", "--no-pretty", "--no-fancy-input", "--no-check-update", "--no-analytics"),
    *("--no-show-release-notes", "--no-show-model-warnings", "--no-detect-urls", "--no-gitignore"),
)
BEFORE, AFTER = "def one():\n    return 1\n", "def one():\n    return 2\n"
BLOCK = f"code.py\n```python\n<<<<<<< SEARCH\n{BEFORE}=======\n{AFTER}>>>>>>> REPLACE\n```\n"
WHOLE = f"code.py\n```\n{AFTER}```\n"


@pytest.fixture
def aider(url: str, tmp_path: Path) -> Run:
    """aider(message, *options, model="ollama_chat/m"): what the command prints; its folder holds `code.py`."""
    (tmp_path / "work").mkdir()
    places = {"OLLAMA_API_BASE": url, "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "any"}
    # Nothing but the daemon is there to be reached.
    proxies = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIDER_", "OPENAI_"))},
        **places,
        **proxies,
        **{name.lower(): value for name, value in proxies.items()},
        "HOME": str(tmp_path),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }

    def run(message: str, *options: str, model: str = "ollama_chat/m") -> str:
        (tmp_path / "work/code.py").write_text(BEFORE)
        command = [PYTHON, "-m", "aider", "--model", model, *OPTIONS, *options, "--message", message]
        done = subprocess.run(
            [*command, "code.py"],
            env=env,
            cwd=tmp_path / "work",
            capture_output=True,
            text=True,
            timeout=200,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def saying(text: str) -> str:
    """A message that the scripted model answers with `text`, whatever aider writes after it.

    It does not begin with an exclamation mark: such a message is a command of the shell.
    """
    text = f"\n\n{text}"
    return f"Certainly. !text:{base64.b64encode(text.encode()).decode()} !stop:x"


@pytest.mark.parametrize(
    ("model", "form", "text", "stream"),
    [
        ("ollama_chat/m", "diff", BLOCK, "--stream"),
        ("ollama_chat/m", "whole", WHOLE, "--no-stream"),
        ("openai/m", "diff", BLOCK, "--stream"),
    ],
)
def test_an_edit(aider: Run, tmp_path: Path, model: str, form: str, text: str, stream: str) -> None:
    printed = aider(saying(text), "--edit-format", form, stream, model=model)
    assert "Applied edit to code.py" in printed, printed
    assert (tmp_path / "work/code.py").read_text() == AFTER


def test_what_is_asked(aider: Run) -> None:
    # Rows are wrapped at any blank.
    request = " ".join(aider("Say: !request !stop:x", "--no-stream").split())
    # Its own choice, the prompt's tokens and 8192: without it an answer would be cut off.
    assert int(re.search(r'"num_ctx": (\d+)', request)[1]) > 8192  # type: ignore[index]
    assert '"temperature": 0' in request and '"role": "system"' in request and "def one():" in request

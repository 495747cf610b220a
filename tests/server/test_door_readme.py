"""The examples of README.md's section on the API, run as they stand against a daemon with fake runners."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:11434"
SECTION = re.search(r"^## API\n(.*?)^## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", SECTION[1] if SECTION else "", re.DOTALL | re.MULTILINE)
EXAMPLES = [(language, code) for language, code in BLOCKS if ADDRESS in code]
CLIENTS = ("ollama", "openai", "anthropic")


def test_each_dialect_has_its_examples() -> None:
    shell = [code for language, code in EXAMPLES if language == "sh"]
    python = [code for language, code in EXAMPLES if language == "python"]
    for path in ("/api/chat", "/v1/chat/completions", "/v1/messages"):
        assert any(f"curl {ADDRESS}{path} " in code for code in shell)
    for client in CLIENTS:
        assert any(f"import {client}\n" in code for code in python)
    assert any("batches.create" in code for code in python)


def test_the_examples(start_live: Callable[..., Any], add_model: Callable[..., None], tmp_path: Path) -> None:
    add_model("smollm2:135m")
    url = start_live().url
    for language, code in EXAMPLES:
        if language == "sh":
            answer = json.loads(_run(_shell(code.replace(ADDRESS, url)), tmp_path))
            assert "error" not in answer and "Hello!" in json.dumps(answer), code
        else:
            said = _run([sys.executable, "-W", "error", "-c", code.replace(ADDRESS, url)], tmp_path)
            assert "Hello" in said, code
            assert "batches" not in code or "request-2 Hello, number 2!" in said


def _shell(code: str) -> list[str]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return ["sh", "-ec", code.replace("curl ", "curl --silent --show-error --noproxy '*' ")]


def _run(command: list[str], folder: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    ended = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_commands_named_there_exist() -> None:
    from localllm.cli.app import COMMANDS, load_command

    named = {match[1] for _, code in BLOCKS for match in re.finditer(r"\blocalllm (\w+)", code)}
    assert named and named <= set(COMMANDS)
    assert "--tls-cert" in {option for parameter in load_command("serve").params for option in parameter.opts}

"""The command line with the real daemon and runner, on a tiny model."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from measuring.ports import free_port

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
PIECES = ["Once", " upon", " a", " time"]
Start = Callable[..., Any]


@pytest.fixture
def model(tmp_path: Path, tiny_models: ModuleType) -> str:
    """The path of a model that always answers PIECES."""
    path = tmp_path / "story.gguf"
    tiny_models.script_model(path, PIECES)
    return str(path)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels are compiled once for all tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> Iterator[int]:
    """The port that commands will start their daemon on; it is ended afterwards."""
    number = free_port()
    monkeypatch.setenv("LOCALLLM_HOST", f"127.0.0.1:{number}")
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(cache_dir))
    yield number
    for process in daemons(number):
        process.terminate()
        process.wait(30)


def daemons(port: int) -> list[psutil.Process]:
    """The processes that listen on a port."""
    found = []
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            found.append(psutil.Process(connection.pid))
    return found


def test_two_commands_at_once_share_one_daemon(port: int, model: str) -> None:
    command = [sys.executable, "-m", "localllm", "run", model, "go"]
    options: dict[str, Any] = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    both = [subprocess.Popen(command, **options) for _ in range(2)]
    assert [process.communicate(timeout=200)[0] for process in both] == [b"Once upon a time\n"] * 2
    assert len(daemons(port)) == 1


def test_a_file_is_pulled_listed_shown_and_removed(port: int, model: str, run_process: Start) -> None:
    result = run_process("run", model, "go", "--verbose")
    assert (result.returncode, result.stdout) == (0, b"Once upon a time\n")
    assert re.search(rb"eval count: +5 token\(s\)\n", result.stderr)
    assert run_process("list").stdout.splitlines()[1].split()[0] == b"story:latest"
    assert run_process("ps").stdout.splitlines()[1].split()[0] == b"story:latest"
    assert b"architecture" in run_process("show", "story").stdout
    assert run_process("cp", "story", "tale").stdout == b"copied 'story' to 'tale'\n"
    assert run_process("stop", "story").returncode == 0
    assert run_process("rm", "story", "tale").stdout == b"deleted 'story'\ndeleted 'tale'\n"
    assert len(run_process("list").stdout.splitlines()) == 1
    result = run_process("run", "127.0.0.1:1/library/story", "go")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"Error: pull model manifest: cannot reach 127.0.0.1:1" in result.stderr


def test_a_chat_survives_the_death_of_its_daemon(port: int, model: str, terminal: Start) -> None:
    screen = terminal(80, "run", model)
    screen.wait_for(lambda: any(row.startswith(">>>") for row in screen.rows()), timeout_s=200)
    screen.type("go\r")
    screen.wait_for(lambda: screen.rows().count("Once upon a time") == 1, timeout_s=60)
    (daemon,) = daemons(port)
    os.kill(daemon.pid, signal.SIGKILL)
    psutil.wait_procs([daemon], timeout=10)
    screen.type("again\r")
    screen.wait_for(lambda: screen.rows().count("Once upon a time") == 2, timeout_s=60)
    screen.type("\x04")
    assert screen.wait_for_exit() == 0


def test_a_port_that_another_program_holds_is_named(monkeypatch: pytest.MonkeyPatch, run_process: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but it accepts nothing
        monkeypatch.setenv("LOCALLLM_HOST", f"127.0.0.1:{taken.getsockname()[1]}")
        result = run_process("list")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"Error: the localllm server did not start (exit code 1)" in result.stderr
    assert b"cannot listen on 127.0.0.1:" in result.stderr


def test_json_lines_of_the_daemon_are_what_the_client_expects(port: int, model: str, run_process: Start) -> None:
    assert run_process("pull", f"file:{model}").returncode == 0
    script = (
        "import json, sys; from localllm.client import Client\n"
        "body = {'model': 'story', 'prompt': 'go'}\n"
        "with Client() as client: print(json.dumps([*client.load({'model': 'story'}), *client.generate(body)]))"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=200, check=True)
    records = json.loads(result.stdout)
    assert any(record.get("status") == "success" for record in records)
    assert "".join(record.get("response", "") for record in records) == "Once upon a time"
    assert records[-1]["done_reason"] == "stop"

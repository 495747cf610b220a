"""Starting the daemon, and what the command line must not import."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localllm.cli.daemon import ensure_running, log_path
from localllm.client import Client, ClientError, NoServerError
from measuring.ports import free_port

ROOT = Path(__file__).resolve().parents[2]

# A daemon in miniature: binds its port exclusively, says so in `started`, answers everything with 200.
SMALL_DAEMON = """
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200); self.end_headers()
time.sleep(0.2)
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
open(sys.argv[2], "a").write(f"{os.getpid()}\\n")
if not os.path.exists(sys.argv[2] + ".over"):  # one that started slowly, where another served, may come after the test
    server.serve_forever()
"""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    number = free_port()
    monkeypatch.setenv("LOCALLLM_HOST", f"127.0.0.1:{number}")
    return number


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Path]:
    """The file that small daemons write their process ids to; they are ended afterwards."""
    path = tmp_path / "started"
    path.touch()
    yield path
    Path(f"{path}.over").touch()
    for line in path.read_text().split():
        subprocess.run(["kill", line], check=False)


@pytest.fixture
def local_client() -> Iterator[Client]:
    with Client() as client:
        yield client


def test_a_daemon_is_started_once_and_then_used(port: int, started: Path, local_client: Client) -> None:
    command = [sys.executable, "-c", SMALL_DAEMON, str(port), str(started)]
    ensure_running(local_client, command)
    ensure_running(local_client, command)
    assert len(started.read_text().split()) == 1


def test_a_log_that_cannot_be_written_is_an_error(
    port: int, local_client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALLLM_STATE_DIR", str(tmp_path / "file/state"))
    with pytest.raises(ClientError, match=r"server\.log cannot be written: Not a directory") as caught:
        ensure_running(local_client, ["/never/started"])
    assert caught.value.hint is not None and "LOCALLLM_STATE_DIR" in caught.value.hint


def test_two_commands_at_once_end_with_one_daemon(port: int, started: Path) -> None:
    script = (
        "import sys; from localllm.client import Client; from localllm.cli.daemon import ensure_running\n"
        "ensure_running(Client(), sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, sys.executable, "-c", SMALL_DAEMON, str(port), str(started)]
    both = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(process.communicate(timeout=30)[1], process.returncode) for process in both] == [(b"", 0), (b"", 0)]
    assert len(started.read_text().split()) == 1


def test_a_daemon_that_fails_is_quoted(port: int, local_client: Client) -> None:
    log_path().parent.mkdir(parents=True)
    log_path().write_text("an older line\n")
    command = [sys.executable, "-c", "import sys; print('line\\n' * 20 + 'no room'); sys.exit(3)"]
    with pytest.raises(ClientError) as caught:
        ensure_running(local_client, command)
    message = str(caught.value)
    assert "(exit code 3)" in message and message.endswith("  line\n  no room")
    assert "older" not in message and message.count("\n") == 10
    assert log_path().read_text().startswith("an older line\n")


def test_a_daemon_that_never_answers_is_given_up(port: int, local_client: Client) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(2)"]
    with pytest.raises(ClientError, match=r"no answer within 0 s"):
        ensure_running(local_client, command, timeout_s=0.2)


def test_a_server_elsewhere_is_never_started() -> None:
    with Client("http://localllm.invalid:1234") as client, pytest.raises(NoServerError) as caught:
        ensure_running(client, ["false"])
    assert str(caught.value) == "could not connect to a localllm server at http://localllm.invalid:1234"
    assert not log_path().exists()


def loaded_modules(*arguments: str) -> set[str]:
    """The top-level modules that a run of the command line imports."""
    script = (
        "import sys, json; sys.argv = ['localllm', *json.loads(sys.argv[1])]\n"
        "from localllm.cli import app\n"
        "app.run(sys.argv[1:])\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, json.dumps(arguments)]
    result = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    return set(json.loads(result.stderr.splitlines()[-1]))


HEAVY = {"numpy", "numba", "llvmlite", "fastapi", "starlette", "uvicorn", "pydantic", "tokenizers", "gguf"}


def test_help_imports_nothing_it_does_not_need() -> None:
    assert loaded_modules("--help") & (HEAVY | {"httpx", "rich", "prompt_toolkit", "asyncio"}) == set()


@pytest.mark.parametrize("arguments", [("run", "m", "hi"), ("list",), ("show", "m"), ("pull", "m")])
def test_commands_import_no_arithmetic_and_no_server(daemon: Any, arguments: tuple[str, ...]) -> None:
    assert loaded_modules(*arguments) & (HEAVY | {"prompt_toolkit"}) == set()


def test_the_repl_imports_no_arithmetic_and_no_server() -> None:
    script = "import sys, localllm.cli.repl; print(*{name.split('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(result.stdout.split()) & HEAVY == set()


def test_the_module_is_the_command(run_process: Callable[..., Any]) -> None:
    assert run_process("help").stdout.startswith(b"Usage: localllm ")

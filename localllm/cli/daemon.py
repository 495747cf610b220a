"""Starts the daemon when none answers; it knows nothing of what the daemon does.

Two commands may start one at the same moment: the port decides which daemon lives, and a command whose own child
gave up uses the other.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import localllm
from localllm import env
from localllm.client import Client, ClientError, NoServerError

START_TIMEOUT_S = 60.0
POLL_S = 0.03
LOG_LINES_SHOWN = 10
COMMAND = (sys.executable, "-m", "localllm", "serve")


def log_path() -> Path:
    """The file that a daemon started by a command writes to."""
    return env.state_dir() / "logs" / "server.log"


def connect() -> Client:
    """A client whose server answers. Raises: as `ensure_running`."""
    client = Client()
    ensure_running(client)
    return client


def ensure_running(client: Client, command: Sequence[str] = COMMAND, timeout_s: float = START_TIMEOUT_S) -> None:
    """Makes sure that the client's server answers; on this machine it is started with `command` if need be.

    Raises: NoServerError for a server elsewhere that does not answer, ClientError when none could be started.
    """
    if client.is_alive():
        return
    if not client.is_local:
        raise NoServerError(
            f"could not connect to a localllm server at {client.url}",
            hint="start it there with `localllm serve`, or unset LOCALLLM_HOST to use this machine",
        )
    _start(client, command, timeout_s)


def _start(client: Client, command: Sequence[str], timeout_s: float) -> None:
    log = log_path()
    with _opened(log) as output:
        begin = output.tell()
        # The working folder must let `-m` find this very package, and must not keep the user's folder busy.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=Path(localllm.__file__).parent.parent,
            start_new_session=True,
        )
    failure = _wait_until_alive(client, child, timeout_s)
    if failure:
        raise ClientError(
            f"the localllm server did not start ({failure}); the end of {log}:\n{_tail(log, begin)}",
            hint="`localllm serve` runs it in this terminal",
        )


def _opened(log: Path) -> BinaryIO:
    """The log, to append to; its folder is made. Raises: ClientError where it cannot be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        raise ClientError(
            f"the localllm server cannot be started: {log} cannot be written: {error.strerror}",
            hint="set LOCALLLM_STATE_DIR to a folder that you may write to, or run `localllm serve` in a terminal",
        ) from error


def _wait_until_alive(client: Client, child: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Empty once a server answers, else why none does; a child that does not answer in time is ended."""
    deadline = time.monotonic() + timeout_s
    while True:
        ended = child.poll() is not None
        if _answers(client):
            break
        if ended:
            return f"exit code {child.returncode}"
        if time.monotonic() > deadline:
            child.terminate()
            child.wait()
            return f"no answer within {timeout_s:.0f} s"
        time.sleep(POLL_S)
    # The daemon outlives this command: nobody waits for it, and that is no leak to warn about.
    child.returncode = child.returncode or 0
    return ""


def _answers(client: Client) -> bool:
    """Whether the daemon answers; one that dies while it is asked does not."""
    try:
        return client.is_alive()
    except ClientError:
        return False


def _tail(log: Path, begin: int) -> str:
    """The last lines written after byte `begin`, indented."""
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return "\n".join(f"  {line}" for line in lines) or "  (nothing was written)"

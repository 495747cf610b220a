"""A daemon with one model, in folders of its own, to time `localllm run` against."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from measuring.ports import free_port

SPARE_S = 4
"""Seconds in which the daemon has started its next runner ahead."""


class Daemon:
    """Starts at once; `close` ends it. `folder` takes the state, the models and the cache."""

    def __init__(self, model: str, folder: Path, n_threads: int) -> None:
        address = ("127.0.0.1", free_port())
        folders = {"STATE_DIR": folder, "MODELS": folder / "models", "CACHE_DIR": folder / "cache"}
        settings = {**folders, "HOST": f"{address[0]}:{address[1]}", "NUM_THREADS": n_threads}
        self._env = os.environ | {f"LOCALLLM_{name}": str(value) for name, value in settings.items()}
        log = folder / "daemon.log"
        with log.open("wb") as file:
            self._process = self._start("serve", stdout=subprocess.DEVNULL, stderr=file.fileno())
        # A command that finds no daemon would start another one.
        while not _answers(address):
            if self._process.poll() is not None:
                status = self._process.returncode
                raise SystemExit(f"Error: the daemon ended at its start: exit status {status}\n{log.read_text()}")
            time.sleep(0.05)
        self._start("pull", f"file:{Path(model).resolve()}", stderr=subprocess.DEVNULL).wait()
        listed = self._start("list", stdout=subprocess.PIPE).communicate()[0].decode()
        self._name = listed.splitlines()[1].split()[0]

    def time_first_byte(self) -> float:
        """Seconds from the start of `localllm run` to the first byte of its answer, the model not loaded."""
        self._start("stop", self._name, stderr=subprocess.DEVNULL).wait()
        time.sleep(SPARE_S)
        start = time.perf_counter()
        run = self._start("run", self._name, "Why is the sky blue?", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert run.stdout is not None
        run.stdout.read(1)
        seconds = time.perf_counter() - start
        run.kill()
        run.communicate()
        return seconds

    def close(self) -> None:
        """End the daemon."""
        self._process.terminate()
        self._process.wait()

    def _start(self, *args: str, **pipes: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "localllm", *args], env=self._env, **pipes)  # type: ignore[call-overload]


def _answers(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0

"""Servers under test: processes that listen on a loopback port of their own; it does not know what they are asked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from localllm import env

PREFIXES = ("LOCALLLM_", "OLLAMA_")
START_S = 120
STOP_S = 40


class Server:
    """A process that listens on a port of its own; `close` ends it. What it prints goes to `log`, if anywhere."""

    def __init__(
        self, command: list[str], port: int, env: dict[str, str] | None = None, log: Path = Path(os.devnull)
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=600, trust_env=False)
        self._command, self._env, self._log = command, env, log
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Run the command; at once with the first object, again after `stop`."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._env, stdout=log, stderr=log)

    def wait(self, path: str) -> None:
        """Until the server answers. Raises: RuntimeError where it ends or takes too long."""
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                if self.http.get(path).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"the server does not answer: {' '.join(self._command)}")

    def stop(self) -> None:
        """End the process."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End the process for good."""
        self.stop()
        self.http.close()


class Daemon(Server):
    """`localllm serve` with state, models and home in `folder`; what is compiled and repacked stays where it was.

    `settings` are `LOCALLLM_` variables without the prefix.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str | int]) -> None:
        port = free_port()
        where: dict[str, object] = {"STATE_DIR": folder, "MODELS": folder / "models", "CACHE_DIR": env.cache_dir()}
        where |= {"HOST": f"127.0.0.1:{port}", **settings}
        given = {f"LOCALLLM_{name}": str(value) for name, value in where.items()}
        variables = _without_settings() | given | {"HOME": str(folder)}
        super().__init__([sys.executable, "-m", "localllm", "serve"], port, variables, folder / "daemon.log")
        self.wait("/")

    def add(self, model: str) -> str:
        """Take a GGUF into the store; its name there."""
        pulled = self.http.post("/api/pull", json={"model": f"file:{Path(model).resolve()}", "stream": False})
        pulled.raise_for_status()
        newest: str = self.http.get("/api/tags").json()["models"][0]["name"]
        return newest


def _without_settings() -> dict[str, str]:
    """This process's environment without what would set up a daemon otherwise."""
    kept = "LOCALLLM_CPU"
    return {name: value for name, value in os.environ.items() if name == kept or not name.startswith(PREFIXES)}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

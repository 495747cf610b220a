"""Servers under test: processes that listen on a loopback port of their own; it does not know what they are asked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from localllm import env
from measuring.ports import free_port

PREFIXES = ("LOCALLLM_", "OLLAMA_")
MADE_OF_FILES = ("kernels", "tokenizers", "weights")
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
    """`localllm serve` with state, models, home and cache in `folder`; what is made of files is in the user's.

    `settings` are `LOCALLLM_` variables without the prefix.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str | int]) -> None:
        port = free_port()
        where: dict[str, object] = {"STATE_DIR": folder, "MODELS": folder / "models"}
        where["CACHE_DIR"] = _cache_in(folder)
        where |= {"HOST": f"127.0.0.1:{port}", **settings}
        given = {f"LOCALLLM_{name}": str(value) for name, value in where.items()}
        variables = _without_settings() | given | {"HOME": str(folder)}
        super().__init__([sys.executable, "-m", "localllm", "serve"], port, variables, folder / "daemon.log")
        self.wait("/")

    def restart(self) -> None:
        """End it and start it again, in the same folder."""
        self.stop()
        self.start()
        self.wait("/")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The object that answers a request that is not streamed. Raises: RuntimeError of what the daemon says."""
        response = self.http.post(path, json={"stream": False, **body})
        if response.status_code != 200:
            raise RuntimeError(f"{path}: status {response.status_code}: {response.text}")
        answer: dict[str, Any] = response.json()
        return answer

    def count_tokens(self, model: str) -> Callable[[str], int]:
        """A function that counts a text's tokens."""
        return lambda text: len(
            self.post("/api/tokenize", {"model": model, "text": text, "add_special": False})["tokens"]
        )

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics, those of all models added up, by the metrics' names."""
        found: dict[str, float] = {}
        for line in self.http.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                name, value = line.split("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
                found[name] = found.get(name, 0.0) + value
        return found

    def add(self, model: str) -> str:
        """Take a GGUF into the store; its name there."""
        self.post("/api/pull", {"model": f"file:{Path(model).resolve()}"})
        newest: str = self.http.get("/api/tags").json()["models"][0]["name"]
        return newest


def _cache_in(folder: Path) -> Path:
    """A new cache folder whose parts of MADE_OF_FILES are the user's; prompts of an earlier daemon are not in it."""
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    for name in MADE_OF_FILES:
        users = env.cache_dir() / name
        users.mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(users)
    return cache


def _without_settings() -> dict[str, str]:
    """This process's environment without what would set up a daemon otherwise."""
    kept = "LOCALLLM_CPU"
    return {name: value for name, value in os.environ.items() if name == kept or not name.startswith(PREFIXES)}

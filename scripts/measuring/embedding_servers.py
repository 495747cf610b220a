"""Servers that turn texts into vectors over HTTP, ours and llama.cpp's, to be asked for the same in turn."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

START_S = 120


class Server:
    """A process that listens on a port of its own; `close` ends it."""

    def __init__(self, command: list[str], port: int, env: dict[str, str] | None = None) -> None:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, env=env, **quiet)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False)

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
        raise RuntimeError("the server does not answer")

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()
        self.http.close()


class OurServer(Server):
    """`localllm serve` with one model; what is compiled and repacked stays in the usual cache folder."""

    def __init__(self, model: str, folder: Path, n_threads: int) -> None:
        port = free_port()
        settings = {"STATE_DIR": folder, "MODELS": folder / "models", "HOST": f"127.0.0.1:{port}"}
        settings["NUM_THREADS"] = n_threads
        env = os.environ | {f"LOCALLLM_{name}": str(value) for name, value in settings.items()}
        super().__init__([sys.executable, "-m", "localllm", "serve"], port, env)
        self.wait("/")
        pulled = self.http.post("/api/pull", json={"model": f"file:{Path(model).resolve()}", "stream": False})
        pulled.raise_for_status()
        self._name = self.http.get("/api/tags").json()["models"][0]["name"]

    def vectors(self, texts: list[str]) -> list[list[float]]:
        """The vectors of texts."""
        answer = self.http.post("/api/embed", json={"model": self._name, "input": texts})
        answer.raise_for_status()
        vectors: list[list[float]] = answer.json()["embeddings"]
        return vectors


class LlamaServer(Server):
    """`llama-server --embedding` with room for several texts in a batch."""

    def __init__(self, folder: str, model: str, n_threads: int, n_ctx: int, n_parallel: int) -> None:
        port = free_port()
        sizes = ["-t", str(n_threads), "-tb", str(n_threads), "-c", str(n_ctx * n_parallel), "-np", str(n_parallel)]
        batch = ["-b", "2048", "-ub", str(max(512, n_ctx))]
        where = ["--host", "127.0.0.1", "--port", str(port)]
        super().__init__([f"{folder}/llama-server", "-m", model, "--embedding", *sizes, *batch, *where], port)
        self.wait("/health")

    def vectors(self, texts: list[str]) -> list[list[float]]:
        """The vectors of texts."""
        answer = self.http.post("/v1/embeddings", json={"input": texts})
        answer.raise_for_status()
        return [item["embedding"] for item in sorted(answer.json()["data"], key=lambda item: item["index"])]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

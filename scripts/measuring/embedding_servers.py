"""Servers that turn texts into vectors over HTTP, ours and llama.cpp's, to be asked for the same in turn."""

from __future__ import annotations

from pathlib import Path

from measuring.ports import free_port
from measuring.servers import Daemon, Server


class OurServer(Daemon):
    """`localllm serve` with one model."""

    def __init__(self, model: str, folder: Path, n_threads: int) -> None:
        super().__init__(folder, {"NUM_THREADS": n_threads})
        self._name = self.add(model)

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

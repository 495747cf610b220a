"""The two servers of a comparison, ours and llama.cpp's, started on one model; it knows no scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from measuring.ports import free_port
from measuring.servers import Daemon, Server


@dataclass(frozen=True)
class Sizes:
    """What both servers are started with: threads, and tokens of a context; how many requests llama-server has at a
    time, and the tokens of its KV cache, where ours chooses."""

    n_threads: int
    n_parallel: int = 8
    n_ctx: int = 8192
    n_kv: int = 32768


@dataclass(frozen=True)
class Side:
    """A server under test and the model's name there; `name` is "ours" or "theirs"."""

    name: str
    server: Server
    model: str

    def client(self) -> httpx.AsyncClient:
        """For as many requests at a time as a scenario likes, each on a connection of its own."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.server.url, timeout=600, trust_env=False, limits=limits)


class LlamaServer(Server):
    """`llama-server` with slots that share one KV cache; `more` are further options, which override ours."""

    def __init__(self, program: str, model: str, sizes: Sizes, more: list[str], log: Path) -> None:
        port = free_port()
        threads = ["-t", str(sizes.n_threads), "-tb", str(sizes.n_threads)]
        cache = ["-c", str(sizes.n_kv), "--kv-unified", "--cache-prompt", "--cache-reuse", "256"]
        how = ["-np", str(sizes.n_parallel), "--cont-batching", "-fa", "auto", "--no-webui"]
        where = ["--host", "127.0.0.1", "--port", str(port)]
        super().__init__([program, "-m", model, *threads, *cache, *how, *more, *where], port, log=log)
        self.wait("/health")


def start_ours(folder: Path, sizes: Sizes, settings: Mapping[str, str | int] | None = None) -> Daemon:
    """Our daemon, without a model so far; `settings` are further variables of its environment."""
    given = {"NUM_THREADS": sizes.n_threads, "CONTEXT_LENGTH": sizes.n_ctx, "KEEP_ALIVE": -1}
    return Daemon(folder, {**given, **(settings or {})})


@contextmanager
def both_sides(
    model: str, folder: Path, sizes: Sizes, llama_cpp: str | None, more: list[str]
) -> Iterator[tuple[list[Side], Daemon]]:
    """Ours, and theirs where there is a `llama_cpp` folder, and our daemon; both have loaded the model."""
    with ExitStack() as started:
        daemon = started.enter_context(closing(start_ours(folder, sizes)))
        sides = [Side("ours", daemon, daemon.add(model))]
        daemon.post("/api/generate", {"model": sides[0].model})
        if llama_cpp:
            program, log = f"{llama_cpp}/llama-server", folder / "llama-server.log"
            theirs = started.enter_context(closing(LlamaServer(program, model, sizes, more, log)))
            sides.append(Side("theirs", theirs, Path(model).stem))
        yield sides, daemon

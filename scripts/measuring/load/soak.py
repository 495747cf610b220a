"""Many requests to two models, a third of them given up at random moments: what is still held when all have gone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from measuring.load.rounds import Figures
from measuring.load.texts import Texts
from measuring.servers import Daemon

PROMPT_TOKENS = (20, 300)
OUTPUT_TOKENS = (8, 48)
CANCELED_SHARE = 1 / 3
MOMENTS = ("queue", "prefill", "decode")
SETTLE_S = 60.0


@dataclass(frozen=True)
class Held:
    """What a daemon and its runners hold while nothing runs: pages that requests use, processes, open files, bytes."""

    pages_used: int
    running: int
    processes: int
    files: int
    daemon_bytes: int
    runner_bytes: int


@dataclass(frozen=True)
class Soak:
    """`n_requests` from `n_clients`; what is held is looked at `n_looks` times, the first time after a part that
    warms up."""

    n_requests: int = 1000
    n_clients: int = 12
    n_looks: int = 5

    def run(self, daemon: Daemon, models: list[str], texts: Texts, seed: int, report: Callable[[str], None]) -> Figures:
        """All requests; `report` is told each look."""
        prompts = [texts.of(texts.between(*PROMPT_TOKENS)) for _ in range(20)]
        rng = random.Random(seed)
        ends: dict[str, int] = {}
        looks: list[Held] = []
        for i in range(self.n_looks):
            n = self.n_requests * (i + 1) // self.n_looks - self.n_requests * i // self.n_looks
            asyncio.run(self._requests(daemon.url, models, prompts, rng, n, ends))
            looks.append(look(daemon, models))
            report(f"{self.n_requests * (i + 1) // self.n_looks} requests: {ends} {looks[-1]}")
        return figures(looks, ends)

    async def _requests(
        self, url: str, models: list[str], prompts: list[str], rng: random.Random, n: int, ends: dict[str, int]
    ) -> None:
        """`n` requests; how each ended is counted in `ends`."""
        queue = [self._body(rng.choice(models), rng.choice(prompts), rng) for _ in range(n)]

        async def client() -> None:
            while queue:
                moment = rng.choice(MOMENTS) if rng.random() < CANCELED_SHARE else ""
                end = await _one(http, queue.pop(), moment, rng)
                ends[end] = ends.get(end, 0) + 1

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False, limits=limits) as http:
            await asyncio.gather(*(client() for _ in range(self.n_clients)))

    @staticmethod
    def _body(model: str, prompt: str, rng: random.Random) -> dict[str, Any]:
        begin = rng.randrange(len(prompt) // 2) if rng.random() < 0.5 else 0  # half of them begin like others
        options = {"num_predict": rng.randint(*OUTPUT_TOKENS), "seed": rng.randrange(1000)}
        return {"model": model, "prompt": prompt[begin:], "options": options}


async def _one(http: httpx.AsyncClient, body: dict[str, Any], moment: str, rng: random.Random) -> str:
    """Ask, and leave at a moment if there is one; how it ended: "done", the moment, or an error."""
    n_pieces = rng.randint(1, 8)
    work = asyncio.create_task(_read(http, body, n_pieces if moment == "decode" else None))
    if moment in ("queue", "prefill"):
        await asyncio.wait([work], timeout=rng.uniform(0, 0.05 if moment == "queue" else 1.0))
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return moment
    return await work


async def _read(http: httpx.AsyncClient, body: dict[str, Any], n_pieces: int | None) -> str:
    """Read an answer, or the first pieces of it."""
    n = 0
    async with http.stream("POST", "/api/generate", json=body) as response:
        if response.status_code != 200:
            return f"status {response.status_code}"
        async for line in response.aiter_lines():
            n += 1
            if n == n_pieces:
                return "decode"
            if '"error"' in line:
                return "error"
    return "done"


def look(daemon: Daemon, models: list[str]) -> Held:
    """What is held when everything has come to rest and each model has answered once more, in the same order."""
    for model in models:
        daemon.post("/api/generate", {"model": model, "prompt": "hi", "options": {"num_predict": 1}})
    deadline = time.monotonic() + SETTLE_S
    while (metrics := daemon.metrics())["localllm_requests_running"] + _used(metrics) and time.monotonic() < deadline:
        time.sleep(0.1)
    process = psutil.Process(daemon.pid)
    runners = process.children(recursive=True)
    return Held(
        pages_used=_used(metrics),
        running=int(metrics["localllm_requests_running"] + metrics["localllm_requests_waiting"]),
        processes=len(runners),
        files=sum(each.num_fds() for each in (process, *runners)),
        daemon_bytes=process.memory_info().rss,
        runner_bytes=max(runner.memory_info().rss for runner in runners),
    )


def _used(metrics: dict[str, float]) -> int:
    return int(metrics.get("localllm_kv_cache_pages_used", 0))


def figures(looks: list[Held], ends: dict[str, int]) -> Figures:
    """Of the looks; growth is relative to the first one."""
    first, last = looks[0], looks[-1]
    return {
        "requests": sum(ends.values()),
        "canceled": sum(ends.get(moment, 0) for moment in MOMENTS),
        "failed": sum(n for end, n in ends.items() if end not in (*MOMENTS, "done")),
        "pages_used": max(held.pages_used for held in looks),
        "running": max(held.running for held in looks),
        "more_processes": last.processes - first.processes,
        "more_files": last.files - first.files,
        "daemon_mb": last.daemon_bytes / 1e6,
        "daemon_growth": last.daemon_bytes / first.daemon_bytes,
        "runner_mb": last.runner_bytes / 1e6,
        "runner_growth": last.runner_bytes / first.runner_bytes,
    }

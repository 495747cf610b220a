"""Requests of all kinds, each alone and then among others with little room: whether the answers are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from measuring.load.rounds import Figures
from measuring.load.texts import Texts
from measuring.servers import Daemon

PROMPT_TOKENS = (10, 150)
OUTPUT_TOKENS = (16, 96)
LONG_OUTPUT_TOKENS = (200, 300)
"""Of every fourth request, which grows so far beyond its prompt that there is too little room for all in the end."""
KINDS = ("greedy", "sampled", "penalties", "mirostat", "schema", "logprobs", "repeats")
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "repeats": {"temperature": 0},
    "penalties": {"repeat_penalty": 1.2, "presence_penalty": 0.3, "min_p": 0.05},
    "mirostat": {"mirostat": 2},
}
"""Of the kinds that have some."""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "size": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
COMPARED = ("response", "message", "context", "logprobs", "done_reason", "eval_count", "prompt_eval_count", "error")
"""Fields of an answer that must be the same; durations and what was cached may differ."""


@dataclass(frozen=True)
class Request:
    """A path of the API and the body of one request."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Exact:
    """`n_requests`, of which `n_together` run at a time when they are not alone."""

    n_requests: int = 200
    n_together: int = 16

    def requests(self, model: str, texts: Texts) -> list[Request]:
        """Chats and completions by turns, of all kinds; every fifth begins as the one five before."""
        shared = texts.of(100)
        return [self._request(model, texts, shared, i) for i in range(self.n_requests)]

    def _request(self, model: str, texts: Texts, shared: str, i: int) -> Request:
        kind = KINDS[i % len(KINDS)]
        text = texts.of(texts.between(*PROMPT_TOKENS))
        text = f"{shared}. {text}" if i % 5 == 0 else text
        text = f"Repeat: {text[:200]}\n\n{text[:200]}\n\n" if kind == "repeats" else text
        is_long = i % 4 == 0
        n_output = texts.between(*(LONG_OUTPUT_TOKENS if is_long else OUTPUT_TOKENS))
        options = {
            "num_predict": n_output,
            "ignore_eos": is_long and kind != "schema",
            "seed": i,
            **OPTIONS.get(kind, {}),
        }
        body: dict[str, Any] = {"model": model, "stream": False, "options": options}
        if kind == "schema":
            body["format"] = SCHEMA
        if kind == "logprobs":
            body |= {"logprobs": True, "top_logprobs": 3}
        if i % 2:
            return Request("/api/chat", {**body, "messages": [{"role": "user", "content": text}]})
        return Request("/api/generate", {**body, "prompt": text})

    def run(self, daemon: Daemon, requests: list[Request], report: Callable[[str], None]) -> Figures:
        """How many answers differ between alone and together; what differs is told to `report`."""
        alone = asyncio.run(answers(daemon.url, requests, 1))
        before = preemptions(daemon)
        together = asyncio.run(answers(daemon.url, requests, self.n_together))
        different = [i for i, pair in enumerate(zip(alone, together, strict=True)) if pair[0] != pair[1]]
        for i in different:
            report(f"request {i} ({KINDS[i % len(KINDS)]}): {together[i]} instead of {alone[i]}")
        return {
            "requests": len(requests),
            "different": len(different),
            "failed": sum("error" in answer for answer in together),
            "preemptions": preemptions(daemon) - before,
            "output_tokens": sum(answer.get("eval_count", 0) for answer in together),
        }


async def answers(url: str, requests: list[Request], n_together: int) -> list[dict[str, Any]]:
    """What is COMPARED of the answers, in the order of the requests."""
    found: list[dict[str, Any]] = [{} for _ in requests]
    queue = list(reversed(list(enumerate(requests))))

    async def client() -> None:
        while queue:
            i, request = queue.pop()
            answer = (await http.post(request.path, json=request.body)).json()
            found[i] = {key: value for key, value in answer.items() if key in COMPARED}

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False, limits=limits) as http:
        await asyncio.gather(*(client() for _ in range(n_together)))
    return found


def preemptions(daemon: Daemon) -> float:
    """How often requests gave their pages back, of all models."""
    return daemon.metrics().get("localllm_preemptions_total", 0.0)

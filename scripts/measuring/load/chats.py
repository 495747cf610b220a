"""One streamed chat over HTTP, in the dialect that both servers speak, and when its pieces came."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""What both sides are asked for, since their defaults differ."""
TELL_PREFILL = {**SAMPLING, "progress": True, "return_progress": True}
"""The same, with news of how long the prompt takes, which each side has a name of its own for."""
NO_TURNS: dict[str, int] = dict.fromkeys(("<", "<|", "|", "|>"), -100)
"""Biases of what the names of turns are written with: where a model has no template, ours ends an answer at them."""
DATA = b"data: "


@dataclass(frozen=True)
class Chat:
    """What is asked: exactly `n_output` tokens, since all that would end an answer is forbidden. Temperature 0 is
    greedy."""

    messages: tuple[Mapping[str, str], ...]
    n_output: int
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=lambda: SAMPLING)

    def body(self, model: str) -> dict[str, Any]:
        """The request for /v1/chat/completions."""
        always: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        always["logit_bias"] = NO_TURNS
        asked = {"messages": list(self.messages), "max_tokens": self.n_output, "seed": self.seed, **self.options}
        return {"model": model, **asked, **always}


@dataclass
class Answer:
    """What came: its text; the seconds (perf_counter) at which the request left, each piece of text arrived, and the
    end; what the prompt took by the server's own account, NaN where that was not asked for."""

    sent_s: float
    end_s: float = math.nan
    text: str = ""
    piece_s: list[float] = field(default_factory=list)
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    prefill_ms: float = math.nan

    @property
    def ttft_s(self) -> float:
        """Seconds to the first piece of text; NaN of none, as tokens of random weights may have no text."""
        return self.piece_s[0] - self.sent_s if self.piece_s else math.nan

    def gaps_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        """Seconds between pieces, of those gaps that lie within the given time, if only in part."""
        pairs = zip(self.piece_s, self.piece_s[1:], strict=False)
        return [b - a for a, b in pairs if b > since_s and a < until_s]

    def take(self, event: Mapping[str, Any], at_s: float) -> None:
        """Note what one event of the stream says."""
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                self.text += piece
                self.piece_s.append(at_s)
        if usage := event.get("usage"):
            self.n_prompt, self.n_output = usage["prompt_tokens"], usage["completion_tokens"]
            self.n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if progress := event.get("prompt_progress"):
            self.prefill_ms = progress["time_ms"]


async def ask(http: httpx.AsyncClient, model: str, chat: Chat, answer: Answer | None = None) -> Answer:
    """The answer to a chat; `answer` is filled while it comes. Raises: httpx.HTTPError, RuntimeError of a failure.

    Events are noted with their time as they come and read when all have: reading them takes time of the machine.
    """
    answer = answer or Answer(0.0)
    answer.sent_s = time.perf_counter()
    async with http.stream("POST", "/v1/chat/completions", json=chat.body(model)) as response:
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}: {(await response.aread()).decode()}")
        pending = b""
        async for block in response.aiter_raw():
            at_s = time.perf_counter()
            *events, pending = (pending + block).split(b"\n\n")
            for event in events:
                if event.startswith(DATA + b"{"):
                    told = json.loads(event[len(DATA) :])
                    if "error" in told:
                        raise RuntimeError(str(told["error"]))
                    answer.take(told, at_s)
    answer.end_s = time.perf_counter()
    if answer.n_output != chat.n_output:
        raise RuntimeError(f"expected a text of {chat.n_output} tokens, got {answer.n_output}")
    return answer

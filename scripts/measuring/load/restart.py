"""A long prompt before and after a restart of the daemon: what its evaluation takes when it is on disk."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from measuring.load.chats import Answer, Chat, ask
from measuring.load.rounds import Figures
from measuring.load.sides import Side
from measuring.load.texts import Texts
from measuring.servers import Daemon

N_OUTPUT = 8
"""Enough for a piece of text: some tokens are only part of a character."""
SETTLE_S = 1.0
"""After an answer, so that what is written in the background does not add to what is measured next."""


@dataclass(frozen=True)
class Restart:
    """The prompt has `n_prompt` tokens."""

    n_prompt: int = 2000

    def run(self, daemon: Daemon, model: str, texts: Texts) -> Figures:
        """One round: the times to the first token in ms, the model in memory; `restart` is that after it ÷ cold."""
        prompt = Chat(({"role": "user", "content": texts.of(self.n_prompt)},), N_OUTPUT)
        cold = self._ask(daemon, model, prompt)
        warm = self._ask(daemon, model, prompt)
        daemon.restart()
        self._ask(daemon, model, Chat(({"role": "user", "content": "hi"},), N_OUTPUT))  # loads the model
        after = self._ask(daemon, model, prompt)
        return {
            "cold_ms": 1000 * cold.ttft_s,
            "warm_ms": 1000 * warm.ttft_s,
            "restarted_ms": 1000 * after.ttft_s,
            "restart": after.ttft_s / cold.ttft_s,
            "cached_tokens": after.n_cached,
            "prompt_tokens": after.n_prompt,
        }

    @staticmethod
    def _ask(daemon: Daemon, model: str, chat: Chat) -> Answer:
        async def run() -> Answer:
            async with Side("ours", daemon, model).client() as http:
                return await ask(http, model, chat)

        answer = asyncio.run(run())
        time.sleep(SETTLE_S)
        return answer

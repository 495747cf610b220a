"""Short chats of all sizes from several clients at a time: how many tokens a second come out, and how evenly."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from measuring.load.chats import Answer, Chat, ask
from measuring.load.rounds import Figures, Found, Must, percentile, ratio
from measuring.load.sides import Side
from measuring.load.texts import Texts

PROMPT_TOKENS = (50, 400)
OUTPUT_TOKENS = (64, 256)


@dataclass(frozen=True)
class Mixed:
    """`n_chats` in a queue that `n_clients` take from."""

    n_clients: int = 8
    n_chats: int = 24

    def chats(self, texts: Texts) -> list[Chat]:
        """The chats of a round, all different."""
        return [self._chat(texts, i) for i in range(self.n_chats)]

    def _chat(self, texts: Texts, seed: int) -> Chat:
        content = texts.of(texts.between(*PROMPT_TOKENS))
        return Chat(({"role": "user", "content": content},), texts.between(*OUTPUT_TOKENS), seed)

    async def run(self, side: Side, chats: list[Chat]) -> Figures:
        """One round of one side."""
        queue = list(reversed(chats))
        answers: list[Answer] = []

        async def client() -> None:
            while queue:
                answers.append(await ask(http, side.model, queue.pop()))

        async with side.client() as http:
            start = time.perf_counter()
            await asyncio.gather(*(client() for _ in range(self.n_clients)))
        return figures(answers, start)

    def musts(self, found: Found) -> list[Must]:
        """What our side has to show, beside a peer."""
        value = ratio(found, "tokens_per_s")
        return [] if value is None else [Must("output tokens/s, x llama-server", value, 2.0, is_floor=True)]


def figures(answers: list[Answer], start_s: float) -> Figures:
    """Of a round that began at `start_s`: rates in tokens a second, times in ms."""
    seconds = max(answer.end_s for answer in answers) - start_s
    waits = [1000 * answer.ttft_s for answer in answers]
    gaps = [1000 * gap for answer in answers for gap in answer.gaps_s()]
    return {
        "tokens_per_s": sum(answer.n_output for answer in answers) / seconds,
        "prompt_tokens": sum(answer.n_prompt for answer in answers),
        "output_tokens": sum(answer.n_output for answer in answers),
        "seconds": seconds,
        "ttft_p50_ms": percentile(waits, 0.5),
        "ttft_p99_ms": percentile(waits, 0.99),
        "tbt_p50_ms": percentile(gaps, 0.5),
        "tbt_p99_ms": percentile(gaps, 0.99),
    }

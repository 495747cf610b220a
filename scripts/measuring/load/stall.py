"""One answer is running when a long prompt arrives: how long the answer's next tokens wait for it."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, replace

from measuring.load.chats import SAMPLING, Answer, Chat, ask
from measuring.load.rounds import Figures, Found, Must, medians, percentile
from measuring.load.sides import Side
from measuring.load.texts import Texts

QUESTION_TOKENS = 60
A_TOKEN_A_STEP = {**SAMPLING, "draft_num_predict": 0}
"""Guessed tokens come in bursts, between which there is no time."""


@dataclass(frozen=True)
class Stall:
    """The prompt has `n_prompt` tokens and comes after `n_before` tokens of an answer of `n_running`."""

    n_prompt: int = 4000
    n_before: int = 100
    n_running: int = 4000

    def chats(self, texts: Texts) -> tuple[Chat, Chat]:
        """The running answer, and the one with the long prompt."""
        running = Chat(({"role": "user", "content": texts.of(QUESTION_TOKENS)},), self.n_running, 1, A_TOKEN_A_STEP)
        return running, Chat(({"role": "user", "content": texts.of(self.n_prompt)},), 4, seed=2)

    async def run(self, side: Side, chats: tuple[Chat, Chat]) -> Figures:
        """One round of one side: the running answer is left at its first token after the prompt's, and comes once more
        without the prompt."""
        running = Answer(0.0)
        async with side.client() as http:
            answering = asyncio.create_task(ask(http, side.model, chats[0], running))
            while len(running.piece_s) <= self.n_before and not answering.done():
                await asyncio.sleep(0.001)
            arrived = await ask(http, side.model, chats[1])
            while running.piece_s[-1] < arrived.piece_s[0] and not answering.done():
                await asyncio.sleep(0.001)
            if answering.done():
                answering.result()  # which raises what went wrong
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            undisturbed = await ask(http, side.model, replace(chats[0], n_output=len(running.piece_s)))
        return figures(running, arrived, undisturbed)

    def musts(self, found: Found) -> list[Must]:
        """What our side has to show."""
        return [Must("p99 between tokens, x undisturbed median", medians(found["ours"])["stall"], 2.5)]


def figures(running: Answer, arrived: Answer, undisturbed: Answer) -> Figures:
    """Times in ms: of the gaps in which the prompt was being evaluated, and of all gaps of the same answer when there
    was none; `stall` is p99 ÷ the median of those."""
    during = [1000 * gap for gap in running.gaps_s(arrived.sent_s, arrived.piece_s[0])]
    before_ms = statistics.median(1000 * gap for gap in undisturbed.gaps_s())
    p99 = percentile(during, 0.99)
    return {
        "undisturbed_ms": before_ms,
        "p50_ms": percentile(during, 0.5),
        "p99_ms": p99,
        "worst_ms": percentile(during, 1.0),
        "gaps": len(during),
        "stall": p99 / before_ms,
        "prompt_ttft_s": arrived.ttft_s,
        "prompt_tokens": arrived.n_prompt,
    }

"""Chats that share a long system prompt: what a first token costs beside evaluating what is not shared."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, replace

import httpx

from measuring.load.chats import TELL_PREFILL, Answer, Chat, ask
from measuring.load.rounds import Figures, Found, Must, medians
from measuring.load.sides import Side
from measuring.load.texts import Texts

N_BEHIND = 7


@dataclass(frozen=True)
class Conversations:
    """Of one round, no question twice: without a system prompt, with one that nobody knows, with the same, of which the
    server tells what evaluating the question takes, and with the same once more."""

    alone: list[Chat]
    first: list[Chat]
    behind: list[Chat]
    shared: list[Chat]


@dataclass(frozen=True)
class Shared:
    """`n_chats` with a system prompt of `n_system` tokens and questions of `n_question`.

    They come one after another, or all at once where `is_together`: once with a new system prompt, once more with it.
    """

    is_together: bool
    n_chats: int = 20
    n_system: int = 2000
    n_question: int = 100
    n_output: int = 8

    def chats(self, texts: Texts) -> Conversations:
        """The chats of a round."""
        system = texts.of(self.n_system)
        return Conversations(
            self._with(texts, ""),
            self._with(texts, system),
            [replace(chat, options=TELL_PREFILL) for chat in self._with(texts, system)[:N_BEHIND]],
            self._with(texts, system),
        )

    def _with(self, texts: Texts, system: str) -> list[Chat]:
        first = [{"role": "system", "content": system}] if system else []
        questions = [{"role": "user", "content": texts.of(self.n_question)} for _ in range(self.n_chats)]
        return [Chat((*first, question), self.n_output, seed) for seed, question in enumerate(questions)]

    async def run(self, side: Side, chats: Conversations) -> Figures:
        """One round of one side."""
        ask_all = _together if self.is_together else _in_turn
        async with side.client() as http:
            alone = await ask_all(http, side.model, chats.alone)
            first = await ask_all(http, side.model, chats.first)
            behind = await _in_turn(http, side.model, chats.behind)
            shared = await ask_all(http, side.model, chats.shared)
        # Of chats that come together, half are evaluated before the one in the middle has its turn.
        n_before = (self.n_chats + 1) / 2 if self.is_together else 1
        return figures(alone, first, n_before * statistics.median(answer.prefill_ms for answer in behind), shared)

    def musts(self, found: Found) -> list[Must]:
        """What our side has to show."""
        return [Must("median TTFT, x evaluating what is unshared", medians(found["ours"])["shared"], 1.3)]


async def _in_turn(http: httpx.AsyncClient, model: str, chats: list[Chat]) -> list[Answer]:
    return [await ask(http, model, chat) for chat in chats]


async def _together(http: httpx.AsyncClient, model: str, chats: list[Chat]) -> list[Answer]:
    return await asyncio.gather(*(ask(http, model, chat) for chat in chats))


def figures(alone: list[Answer], first: list[Answer], unshared_ms: float, shared: list[Answer]) -> Figures:
    """Medians of the times to the first token in ms, and what they are of `unshared_ms`, which is what evaluating the
    questions takes where they stand, behind the system prompt: `shared` when that is known, `first` when it is new to
    the first chat. Questions without it take `alone_ms`; they attend to 2,000 tokens less."""
    alone_ms, first_ms, shared_ms = (_median_ttft_ms(answers) for answers in (alone, first, shared))
    return {
        "unshared_ms": unshared_ms,
        "alone_ms": alone_ms,
        "cold_ms": 1000 * first[0].ttft_s,
        "first_ms": first_ms,
        "shared_ms": shared_ms,
        "slowest_ms": 1000 * max(answer.ttft_s for answer in shared),
        "first": first_ms / unshared_ms,
        "shared": shared_ms / unshared_ms,
        "shared_to_alone": shared_ms / alone_ms,
        "cached_tokens": statistics.median(answer.n_cached for answer in shared),
        "prompt_tokens": statistics.median(answer.n_prompt for answer in shared),
    }


def _median_ttft_ms(answers: list[Answer]) -> float:
    return 1000 * statistics.median(answer.ttft_s for answer in answers)

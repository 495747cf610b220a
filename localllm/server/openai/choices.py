"""Several answers at once: a request told apart by seeds, and the messages of all as they come; it knows no shapes."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from localllm.messages import GenerateRequest

T = TypeVar("T")

QUEUE_LENGTH = 64
N_SEEDS = 2**63


def replicas(request: GenerateRequest, n: int) -> list[GenerateRequest]:
    """n requests alike but for their ids and their seeds, which count up; a seed that is random stays so."""
    seed = request.options["seed"]
    seeds = [(seed + i) % N_SEEDS if seed >= 0 else seed for i in range(n)]
    return [replace(request, id=uuid.uuid4().hex, options={**request.options, "seed": seed}) for seed in seeds]


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """The items of all sources as they come, each with its source's place. The first error ends them all."""
    heard: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(QUEUE_LENGTH)
    pumps = [asyncio.create_task(_pump(i, source, heard)) for i, source in enumerate(sources)]
    try:
        n_open = len(pumps)
        while n_open:
            item = await heard.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                n_open -= 1
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    index: int, source: AsyncGenerator[T, None], heard: "asyncio.Queue[tuple[int, T] | Exception | None]"
) -> None:
    try:
        async with aclosing(source) as items:
            async for item in items:
                await heard.put((index, item))
        await heard.put(None)
    except Exception as error:
        await heard.put(error)

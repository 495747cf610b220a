"""What the streams of chats and completions have in common: chunks with choices, then the counts of tokens.

It does not know what a choice says.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

from localllm.messages import Done, GenerateRequest, Message, Prefill
from localllm.server import inference
from localllm.server.inference import Asked
from localllm.server.openai.choices import merged
from localllm.server.openai.figures import Usage, prompt_progress, reports
from localllm.server.streaming import Record, Records

FINGERPRINT = "fp_localllm"
"""The same for all answers: what was computed does not change from one to the next."""


class Teller(Protocol):
    """Tells one choice."""

    def choices(self, message: Message) -> Iterator[Record]:
        """The entries of `choices`, one a chunk, that a message of the runner makes."""


def head(asked: Asked, prefix: str, kind: str) -> Record:
    """What all chunks of an answer begin with."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": asked.shown,
        "system_fingerprint": FINGERPRINT,
    }


async def stream(
    head: Record,
    asked: Asked,
    requests: Sequence[GenerateRequest],
    tellers: Sequence[Teller],
    *,
    n: int,
    with_usage: bool,
) -> Records:
    """The chunks of all requests as they come; a prompt has `n` requests, one after the other, and is counted once."""
    usage = Usage()
    async with aclosing(merged([inference.run(asked, request) for request in requests])) as messages:
        async for index, (message, turn) in messages:
            extras: Record = {}
            if isinstance(message, Prefill):
                if not requests[index].progress:
                    continue
                extras = {"prompt_progress": prompt_progress(message)}
            elif isinstance(message, Done):
                usage.add(message.stats, is_new_prompt=index % n == 0)
                extras = reports(asked, message, turn)
            for choice in tellers[index].choices(message):
                yield {**head, "choices": [choice], **extras}
    if with_usage:
        yield {**head, "choices": [], "usage": usage.record()}


def fold(records: list[Record], whole_choice: Callable[[int, list[Record]], Record]) -> Record:
    """The whole answer of a stream's chunks, of which the last has the counts of tokens."""
    parts: dict[int, list[Record]] = {}
    whole: Record = {}
    for record in records:
        whole |= {key: value for key, value in record.items() if key != "choices"}
        for choice in record["choices"]:
            parts.setdefault(choice["index"], []).append(choice)
    usage = whole.pop("usage")
    return {**whole, "choices": [whole_choice(index, parts[index]) for index in sorted(parts)], "usage": usage}

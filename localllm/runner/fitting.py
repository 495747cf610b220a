"""What of a conversation goes, and where a text is cut, when a prompt does not fit; it knows no templates.

A conversation loses its oldest turns: a turn is a user's message with all that follows up to the next one. Of a last
turn that is too long by itself, the oldest rounds go, a call of tools with its results, and the question only where
nothing else helps. System messages always stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.chat.conversation import Message

MIN_N_CTX = 4
# The shares of a context that are left free for the answer, where something is dropped: with and without num_predict.
MOST_FOR_ANSWER = 4
FOR_ANSWER = 8
# Conversations lose tokens in multiples of this share of their context.
STEP = 8
# What stands where the middle of a text was taken out.
GAP = "\n[...]\n"


def n_ctx_of(options: Mapping[str, Any], n_loaded: int) -> int:
    """The context of a request: that of the model, unless it asks for a shorter one of at least MIN_N_CTX tokens."""
    wanted = options.get("num_ctx") or n_loaded
    return min(max(wanted, MIN_N_CTX), n_loaded)


def room_for_answer(num_predict: int, n_ctx: int) -> int:
    """How many tokens of the context stay free for the answer to a prompt that something is dropped of."""
    if num_predict < 0:
        return max(1, n_ctx // FOR_ANSWER)
    return max(1, min(num_predict, n_ctx // MOST_FOR_ANSWER))


def shortened_length(n_all: int, n_ctx: int, n_room: int) -> int:
    """How many of `n_all` tokens are to be left, at most.

    The same number goes for as long as possible while a conversation grows. So it begins with the same turn for a
    while, and the KV cache has all but the newest of it.
    """
    step = max(1, n_ctx // STEP)
    n_over = n_all - (n_ctx - n_room)
    return n_all - -(-n_over // step) * step


@dataclass(frozen=True)
class Cut:
    """Messages before `begin` go, but for the system's and the one at `question`."""

    begin: int
    question: int = -1

    def kept(self, messages: Sequence[Message]) -> list[Message]:
        """What is left of the messages."""
        return [m for i, m in enumerate(messages) if i >= self.begin or i == self.question or m["role"] == "system"]


def cuts_of(messages: Sequence[Message]) -> tuple[list[Cut], list[Cut]]:
    """The ways to shorten a conversation: by whole turns, and within the last turn; each list begins with those that
    keep most. A result of a tool stays with its call, the beginning of an answer with its question."""
    first = next((i for i, m in enumerate(messages) if m["role"] != "system"), 0)
    turns = [i for i, m in enumerate(messages) if m["role"] == "user" and i > first]
    question = turns[-1] if turns else first
    rounds = [i for i, m in enumerate(messages) if i > question and m["role"] not in ("system", "tool")]
    if messages and messages[-1]["role"] == "assistant":
        rounds = rounds[:-1]
    return [Cut(i) for i in turns], [*(Cut(i, question) for i in rounds[1:]), *(Cut(i) for i in rounds[-1:])]


def longest_of(messages: Sequence[Message]) -> int | None:
    """The place of the longest text that is not the system's."""
    lengths = {i: len(m.get("content") or "") for i, m in enumerate(messages) if m["role"] != "system"}
    return max(lengths, key=lengths.__getitem__) if any(lengths.values()) else None


def n_kept(num_keep: int, tokens: list[int], n_prompt: int, bos_id: int | None, n_ctx: int) -> int:
    """Tokens kept at the front when the context is cut: a negative `num_keep` is the whole prompt, BOS is extra,
    and half of the context is the most, so that each cut makes room."""
    wanted = n_prompt if num_keep < 0 else num_keep + (bos_id is not None and tokens[:1] == [bos_id])
    return min(wanted, n_prompt, n_ctx // 2)

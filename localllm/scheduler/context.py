"""How long a model's context is, and how large its KV cache, in the memory there is; it knows no other model.

A context that somebody asked for is had as it is, or not at all. Where nobody did, it is chosen: the longest one up to
the trained length whose keys and values take at most half of what the weights leave, in steps far enough apart that
a little more or less free memory makes no difference from one start to the next.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from localllm.scheduler.memory import MAX_AUTOMATIC_CTX, MemoryEstimate

PAGE_POSITIONS = 32
CONTEXT_SHARE = 0.5
"""What of the memory beside weights and workspace a chosen context may take."""
MIN_AUTOMATIC_CTX = 2048
"""A conversation in less is of little use: with less memory than that, a model is refused."""
COMFORTABLE_CTX = 4096
"""A chosen context that is not cut for the sake of models that nobody uses now: they are unloaded instead."""
KV_CACHE_SHARE = 0.125
"""What of that memory the KV cache may take beyond one whole context: more prefixes to find again, and several long
requests at the same time."""
KV_CACHE_CONTEXTS = 4
"""Whole contexts that the KV cache may hold: with a small model on a large machine, a share of memory is more than its
prefixes are worth."""


@dataclass(frozen=True)
class ContextWish:
    """The context that is wanted: at least `num_ctx` tokens (not more than the model was trained for), and as many as
    memory suggests where it `is_automatic`."""

    num_ctx: int
    is_automatic: bool


@dataclass(frozen=True)
class ContextSize:
    """The context in force, and the tokens of the KV cache, both for all sequences together."""

    num_ctx: int
    num_kv: int


def steps(longest: int) -> list[int]:
    """The lengths that are chosen from, ascending: powers of 2 and 1.5 times these, and `longest` itself."""
    powers = itertools.takewhile(lambda n: n < longest, (1 << k for k in range(4, 64)))
    return [n for power in powers for n in (power, power * 3 // 2) if n < longest] + [longest]


def automatic_ctx(cost: MemoryEstimate, room_bytes: int) -> int:
    """The context that is chosen in that much memory; it may not fit where even the shortest one does not."""
    longest = cost.capped(MAX_AUTOMATIC_CTX)
    affordable = CONTEXT_SHARE * (room_bytes - cost.fixed_bytes)
    fitting = [n for n in steps(longest) if n * cost.bytes_per_token <= affordable]
    return max(fitting[-1] if fitting else 0, min(MIN_AUTOMATIC_CTX, longest))


def wanted_ctx(wish: ContextWish, cost: MemoryEstimate, room_bytes: int) -> int:
    """The context that a wish means in that much memory, whether it fits or not."""
    asked = cost.capped(wish.num_ctx)
    return max(asked, automatic_ctx(cost, room_bytes)) if wish.is_automatic else asked


def shortest_ctx(wish: ContextWish, cost: MemoryEstimate) -> int:
    """The least that a wish can be content with."""
    return wanted_ctx(wish, cost, 0)


def fit(wish: ContextWish, cost: MemoryEstimate, room_bytes: int, num_parallel: int) -> ContextSize | None:
    """The sizes in that much memory, None where it is too little."""
    num_ctx = wanted_ctx(wish, cost, room_bytes)
    if cost.total_bytes(num_ctx, num_ctx) > room_bytes:
        return None
    return ContextSize(num_ctx, pool_size(cost, num_ctx, num_parallel, room_bytes))


def pool_size(cost: MemoryEstimate, num_ctx: int, num_parallel: int, room_bytes: int) -> int:
    """Tokens of the KV cache: one whole context, and up to one for each sequence, KV_CACHE_CONTEXTS at most, within a
    share of what is left."""
    if not cost.kv_bytes_per_token:
        return num_ctx
    left = room_bytes - cost.total_bytes(num_ctx, 0)
    most = num_ctx * min(num_parallel, KV_CACHE_CONTEXTS)
    return max(num_ctx, min(most, int(left * KV_CACHE_SHARE / cost.kv_bytes_per_token)))


def longest_fitting(cost: MemoryEstimate, room_bytes: int) -> int:
    """The longest context that memory has room for, in whole pages of the KV cache; 0 for none."""
    left = room_bytes - cost.fixed_bytes
    if left < 0:
        return 0
    most = int(left / cost.bytes_per_token) if cost.bytes_per_token else cost.n_ctx_train
    return cost.capped(most // PAGE_POSITIONS * PAGE_POSITIONS)

"""Sequences of finished requests, kept for the next request that begins alike; it knows token ids, not text.

Keys and values depend on the adapters in force. So a sequence serves only requests with the same *key*.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Tokens
from typing import Protocol

from localllm.engine.errors import NoSlotError

# A shorter common start is not worth the rest of a kept sequence, if there is room for a new one.
WORTHWHILE_TOKENS = 32


class SequenceLike(Protocol):
    """What the runner needs of an engine's sequence."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def truncate(self, n: int) -> None: ...

    def close(self) -> None: ...


class Opener(Protocol):
    """What opens sequences: an engine."""

    def open_sequence(self) -> SequenceLike: ...


class KeptSequences:
    """Hands out sequences that already hold the beginning of a prompt, and takes them back; the oldest gives way."""

    def __init__(self, engine: Opener) -> None:
        self._engine = engine
        self._idle: list[tuple[SequenceLike, Hashable]] = []  # with its key; the one used longest ago first

    def acquire(self, prompt: Tokens[int], key: Hashable = ()) -> SequenceLike:
        """A sequence that holds a start of `prompt`, but not all of it: the last token must be evaluated.

        What it holds was computed under the same key.

        Raises:
            NoSlotError: every sequence is in use.
        """
        lengths = [common_length(seq.tokens, prompt) if its == key else 0 for seq, its in self._idle]
        best = max(range(len(lengths)), key=lambda i: (lengths[i], i), default=None)
        if best is None or not _is_worthwhile(lengths[best], len(self._idle[best][0])):
            fresh = self._open()
            if fresh is not None:
                return fresh
        if best is None:
            return self._engine.open_sequence()
        chosen = best if lengths[best] > 0 else 0
        seq, _ = self._idle.pop(chosen)
        seq.truncate(min(lengths[chosen], len(prompt) - 1))
        return seq

    def release(self, seq: SequenceLike, key: Hashable = ()) -> None:
        """Take a sequence back, with what it holds, which was computed under that key."""
        self._idle.append((seq, key))

    def give_way(self) -> bool:
        """Close the sequence that was used longest ago; False if none is idle."""
        if not self._idle:
            return False
        self._idle.pop(0)[0].close()
        return True

    def _open(self) -> SequenceLike | None:
        try:
            return self._engine.open_sequence()
        except NoSlotError:
            return None


def _is_worthwhile(n_common: int, n_kept: int) -> bool:
    return n_common >= WORTHWHILE_TOKENS or (n_common > 0 and 2 * n_common >= n_kept)


def common_length(a: Tokens[int], b: Tokens[int]) -> int:
    """Length of the longest common start."""
    n = 0
    for x, y in zip(a, b):  # noqa: B905 (the shorter one ends it)
        if x != y:
            break
        n += 1
    return n

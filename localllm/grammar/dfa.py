"""A deterministic automaton over bytes, as tables; how it is made it does not know."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DEAD = -1


@dataclass(frozen=True, eq=False)
class Dfa:
    """A regular language over bytes. State 0 is the start.

    classes: uint8 [256]; bytes of one class behave alike.
    next: int32 [n_states, n_classes], C-contiguous; the state that follows, DEAD where no word goes on.
    accepting: bool [n_states].

    It is trimmed: each state is reached from the start, and from each an accepting one is reached. Only the empty
    language has a state (its one, the start) without a way to accept.
    """

    classes: npt.NDArray[np.uint8]
    next: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.bool_]

    @property
    def n_states(self) -> int:
        return len(self.accepting)

    @property
    def is_empty(self) -> bool:
        """Whether it has no word."""
        return not self.accepting.any()

    @functools.cached_property
    def key(self) -> bytes:
        """The same for the same tables, whoever made them: 16 bytes."""
        digest = hashlib.blake2b(digest_size=16)
        for table in (self.classes, self.next, self.accepting):
            digest.update(np.ascontiguousarray(table).tobytes())
        return digest.digest()

    def follow(self, data: bytes, state: int = 0) -> int:
        """The state after these bytes, DEAD where no word goes on so."""
        for byte in data:
            if state == DEAD:
                break
            state = int(self.next[state, self.classes[byte]])
        return state

    def accepts(self, data: bytes) -> bool:
        state = self.follow(data)
        return state != DEAD and bool(self.accepting[state])

"""Logit bias: add a constant to chosen logits; it knows nothing of history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from localllm.sampling.candidates import Floats


class LogitBias:
    """logit += bias; a bias of -inf bans the token. Ids outside the vocabulary are ignored."""

    def __init__(self, bias: Mapping[int, float], banned: Iterable[int], n_vocab: int) -> None:
        merged = {**bias, **dict.fromkeys(banned, -np.inf)}
        kept = {token: value for token, value in merged.items() if 0 <= token < n_vocab}
        self._ids = np.fromiter(kept.keys(), np.intp, len(kept))
        self._bias = np.fromiter(kept.values(), np.float32, len(kept))

    @property
    def is_active(self) -> bool:
        return len(self._ids) > 0

    def apply(self, logits: Floats) -> None:
        """Change float32[n_vocab] in place."""
        logits[self._ids] += self._bias

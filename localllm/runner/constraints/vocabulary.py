"""The vocabulary of a model as constraints see it: the bytes of each token; it knows no grammar."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from localllm.errors import RequestError
from localllm.grammar.dfa import Dfa
from localllm.grammar.vocabulary import RowTokens, Vocabulary
from localllm.tokenizer import Tokenizer

# Without a token for each of these no constraint could be sure to find a way to go on.
NEEDED_BYTES = bytes(range(0x20, 0x7F))


class SharedVocabulary(Vocabulary):
    """A vocabulary for the thread that compiles and the one that steps: what they learn of it is learnt by one at a
    time."""

    def __init__(self, pieces: Sequence[bytes], eos_ids: Collection[int], special_ids: Collection[int]) -> None:
        super().__init__(pieces, eos_ids, special_ids)
        self._lock = threading.Lock()

    def row_tokens(self, dfa: Dfa, delta: npt.NDArray[np.int32], row: int) -> RowTokens:
        with self._lock:
            return super().row_tokens(dfa, delta, row)


def pieces_of(name: str, tokenizer: Tokenizer, n_vocab: int) -> list[bytes]:
    """The bytes of the first `n_vocab` tokens; those that stand for none, or are never to be sampled, have none.

    Raises:
        RequestError: the vocabulary cannot spell every text; `name` is the model's.
    """
    suppressed = tokenizer.suppress_ids
    pieces = [b"" if token in suppressed else tokenizer.piece(token) for token in range(n_vocab)]
    single = {piece for piece in pieces if len(piece) == 1}
    if missing := next((byte for byte in NEEDED_BYTES if bytes((byte,)) not in single), None):
        text = f'"{name}" cannot be constrained: its vocabulary has no token for the character {chr(missing)!r} alone'
        raise RequestError(text)
    return pieces


def vocabulary_of(name: str, tokenizer: Tokenizer, n_vocab: int) -> SharedVocabulary:
    """The vocabulary for constraints. Raises: RequestError."""
    control = [token for token in range(n_vocab) if tokenizer.is_control(token)]
    return SharedVocabulary(pieces_of(name, tokenizer, n_vocab), tokenizer.eog_ids, control)

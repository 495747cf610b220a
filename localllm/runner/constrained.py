"""One answer on its way through its constraint: which logits stay, what is taken, what is forced; it knows no text.

What the constraint forces is not sampled: its tokens are evaluated together with the token sampled last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kernels_cpu.masking import WORD_BITS, masked
from localllm.grammar.errors import ConstraintError
from localllm.runner.constraints import Compiled
from localllm.runner.constraints.lazy_matcher import LazyMatcher
from localllm.tokenizer import Tokenizer

# Forced text is tokenised together with this many tokens before it.
N_BEFORE = 4


class Constrained:
    """The state of one answer's constraint, which only the thread of the steps uses."""

    def __init__(self, compiled: Compiled, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._matcher = compiled.constraint.matcher()
        self._matcher.accept_bytes(compiled.begun)  # where it does not fit, the answer begins after it
        self._tokenizer = tokenizer
        self._words = np.zeros(-(-n_vocab // WORD_BITS), np.uint32)

    def masked(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """A copy of float32 [n_vocab] with -inf for every token that does not fit.

        Raises:
            ConstraintError: no token fits, or the constraint has become too complex.
        """
        self._matcher.fill_mask(self._words)
        if not self._words.any():
            raise ConstraintError("the constraint cannot go on: no token of the vocabulary fits")
        out = np.empty(len(logits), np.float32)
        logits = np.ascontiguousarray(logits, np.float32)
        masked(self._words.ctypes.data, logits.ctypes.data, out.ctypes.data, len(logits))
        return out

    def refuses(self, token: int) -> bool:
        """Whether a token does not fit although the mask has it: a lazy constraint begins with it, but not so."""
        return isinstance(self._matcher, LazyMatcher) and not self._matcher.fits(token)

    def accept(self, token: int) -> None:
        """Take a token that was sampled. Raises: ConstraintError."""
        if not self._matcher.accept(token):
            raise ConstraintError(f"the constraint does not take token {token}, which it had allowed")

    @property
    def is_finished(self) -> bool:
        """Nothing but the end can follow."""
        return self._matcher.is_finished()

    def forced(self, before: Sequence[int], most: int) -> list[int]:
        """The tokens of the text that must follow, at most so many; they are not taken yet.

        They are those that the tokenizer makes of that text after the tokens `before`, without the last ones that may
        become others by what follows: these are left to the model.
        """
        text = self._matcher.forced_bytes() if most > 0 else b""
        tokens = self._tokens_of(text, before)[:most] if text else []
        tokens = tokens[: self._n_taken(tokens)]
        n_bytes = sum(len(self._tokenizer.piece(token)) for token in tokens)
        while tokens:
            last = len(self._tokenizer.piece(tokens[-1]))
            if not self._may_grow(text[: n_bytes - last], last):
                break
            n_bytes -= last
            tokens.pop()
        return tokens

    def _tokens_of(self, text: bytes, before: Sequence[int]) -> list[int]:
        """Tokens whose bytes are the text, none where it is not one of whole characters."""
        for n in range(min(N_BEFORE, len(before)), -1, -1):
            earlier = list(before[len(before) - n :])
            whole = _decoded(b"".join(map(self._tokenizer.piece, earlier)) + text)
            if whole is None:
                continue
            tokens = self._tokenizer.encode(whole, add_special=False, parse_special=False, is_continuation=True)
            if tokens[:n] == earlier and b"".join(map(self._tokenizer.piece, tokens[n:])) == text:
                return tokens[n:]
        return []

    def _n_taken(self, tokens: Sequence[int]) -> int:
        """How many of these, in order, the constraint takes: not those that are never to be sampled, whatever they
        spell."""
        if not tokens:
            return 0
        matcher = self._matcher.clone()
        return next((i for i, token in enumerate(tokens) if not matcher.accept(token)), len(tokens))

    def _may_grow(self, before: bytes, n_last: int) -> bool:
        """Whether the token of `n_last` bytes that comes after `before` could be a longer one."""
        matcher = self._matcher.clone()
        if not matcher.accept_bytes(before):
            return True
        words = np.zeros_like(self._words)
        matcher.fill_mask(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        return any(len(self._tokenizer.piece(token)) > n_last for token in allowed.tolist())


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None

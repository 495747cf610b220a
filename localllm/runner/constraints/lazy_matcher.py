"""A constraint that begins at a trigger: until one is met, anything may be written; it knows no grammars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from localllm.grammar.lazy import Beginning, LazyStart, Trigger
from localllm.runner.constraints.compiled import Constraint, Matcher


class LazyConstraint:
    """`constraint`, begun where one of `triggers` is met. `piece` gives what a token is to triggers."""

    def __init__(self, constraint: Constraint, triggers: Sequence[Trigger], piece: Callable[[int], bytes]) -> None:
        self._constraint, self._piece = constraint, piece
        self._start = LazyStart(triggers)

    def matcher(self) -> LazyMatcher:
        """A text at its beginning."""
        return LazyMatcher(self._constraint, self._start.anew(), self._piece)


class LazyMatcher:
    """Free until a trigger is met; from there on as the constraint has it."""

    def __init__(self, constraint: Constraint, start: LazyStart, piece: Callable[[int], bytes]) -> None:
        self._constraint, self._start, self._piece = constraint, start, piece
        self._begun: Matcher | None = None

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        """All tokens, until the constraint has begun."""
        if self._begun is None:
            out[:] = 0xFFFFFFFF
        else:
            self._begun.fill_mask(out)

    def accept(self, token: int) -> bool:
        """Take a token; False where the constraint, which begins with it, does not take what it must begin with."""
        if self._begun is not None:
            return self._begun.accept(token)
        beginning = self._start.accept(token, self._piece(token))
        if beginning is None:
            return True
        self._begun = self._constraint.matcher()
        return _takes(self._begun, beginning)

    def fits(self, token: int) -> bool:
        """Whether `accept` would take it. No mask says so before the constraint has begun: a token that ends a trigger
        may go on with what the constraint does not take."""
        if self._begun is not None:
            return True
        beginning = self._start.clone().accept(token, self._piece(token))
        return beginning is None or _takes(self._constraint.matcher(), beginning)

    def accept_bytes(self, data: bytes) -> bool:
        """Text that has been begun is before any trigger."""
        return self._begun is None or self._begun.accept_bytes(data)

    def is_complete(self) -> bool:
        return self._begun is None or self._begun.is_complete()

    def is_finished(self) -> bool:
        return self._begun is not None and self._begun.is_finished()

    def forced_bytes(self) -> bytes:
        """Nothing before the constraint has begun."""
        return b"" if self._begun is None else self._begun.forced_bytes()

    def clone(self) -> Matcher:
        """The constraint's, which has begun: there is nothing to ask a clone before."""
        assert self._begun is not None, "the constraint has begun"
        return self._begun.clone()


def _takes(matcher: Matcher, beginning: Beginning) -> bool:
    has_head = not beginning.head or matcher.accept_bytes(beginning.head)
    return has_head and all(matcher.accept(token) for token, _ in beginning.tokens)

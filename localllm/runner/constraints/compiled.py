"""A constraint that is ready for use, as the steps need it; how it is made it does not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Matcher(Protocol):
    """One answer on its way through a grammar."""

    def fill_mask(self, out: npt.NDArray[np.uint32]) -> None:
        """Which tokens may follow, in uint32 [n_words]: bit t % 32 of word t // 32 is token t. End tokens may where
        the text is complete. Raises: ConstraintError."""

    def accept(self, token: int) -> bool:
        """Take a token; False, and nothing changes, where it does not fit."""

    def accept_bytes(self, data: bytes) -> bool:
        """The same for bytes."""

    def is_complete(self) -> bool:
        """Whether the text may end here."""

    def is_finished(self) -> bool:
        """Whether nothing but the end can follow."""

    def forced_bytes(self) -> bytes:
        """The only way to go on, up to where there is a choice or the text may end."""

    def clone(self) -> Matcher:
        """Another one in the same state."""


class Constraint(Protocol):
    """A grammar on a vocabulary. Its matchers belong to one thread."""

    def matcher(self) -> Matcher:
        """A text at its beginning."""


@dataclass(frozen=True)
class Compiled:
    """A constraint on whole answers, with what of it could not be enforced, and content that has been begun: if it
    fits, the answer goes on from there."""

    constraint: Constraint
    warnings: tuple[str, ...] = ()
    begun: bytes = b""

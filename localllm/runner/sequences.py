"""What the runner needs of an engine's sequences; how tokens that are known are found is the engine's matter."""

from __future__ import annotations

from typing import Protocol


class SequenceLike(Protocol):
    """Tokens whose keys and values are in the KV cache."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    @property
    def n_chunk(self) -> int:
        """How many tokens that follow are on their way through the model."""
        ...

    @property
    def n_stages_done(self) -> int:
        """How many of its stages they have gone through."""
        ...

    def n_pages_missing(self, n_new: int) -> int:
        """Pages to be taken before `n_new` more tokens fit."""
        ...

    def truncate(self, n: int) -> None: ...

    def close(self) -> None: ...

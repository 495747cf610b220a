"""What the runner needs of an engine's sequences; how tokens that are known are found is the engine's matter."""

from __future__ import annotations

from typing import Protocol


class SequenceLike(Protocol):
    """Tokens whose keys and values are in the KV cache."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def n_pages_missing(self, n_new: int) -> int:
        """Pages to be taken before `n_new` more tokens fit."""
        ...

    def truncate(self, n: int) -> None: ...

    def close(self) -> None: ...

"""Hands out the pages of the KV cache and counts their users; it does not know what is in them."""

from __future__ import annotations

from localllm.engine.errors import KVCacheFullError


class PageAllocator:
    """`n_pages` pages, each free or held by a number of users. A page freed last is given out first."""

    def __init__(self, n_pages: int) -> None:
        self._n_users = [0] * n_pages
        self._free = list(range(n_pages - 1, -1, -1))

    @property
    def n_pages(self) -> int:
        return len(self._n_users)

    @property
    def n_free(self) -> int:
        return len(self._free)

    def n_users(self, page: int) -> int:
        """How many hold the page; 0 if it is free."""
        return self._n_users[page]

    def take(self, n: int) -> list[int]:
        """`n` free pages, which the caller now holds.

        Raises:
            KVCacheFullError: fewer are free; none was taken.
        """
        if n > len(self._free):
            raise KVCacheFullError(n, len(self._free))
        pages = [self._free.pop() for _ in range(n)]
        for page in pages:
            self._n_users[page] = 1
        return pages

    def share(self, page: int) -> None:
        """Adds a user to a page that is held. Raises ValueError if it is free."""
        self._check_held(page)
        self._n_users[page] += 1

    def release(self, page: int) -> None:
        """Takes a user from a page, which becomes free with the last one. Raises ValueError if it is free."""
        self._check_held(page)
        self._n_users[page] -= 1
        if self._n_users[page] == 0:
            self._free.append(page)

    def _check_held(self, page: int) -> None:
        if self._n_users[page] == 0:
            raise ValueError(f"page {page} is free")

"""Hands out the pages of the KV cache and counts their users; it does not know what is in them."""

from __future__ import annotations

from collections.abc import Callable

from localllm.engine.errors import KVCacheFullError


class PageAllocator:
    """`n_pages` pages, each free or held by a number of users. A page freed last is given out first.

    One of a page's users may be its keeper, who would give it up at any time: the page is idle while it has no other.
    `on_idle(page)` is called whenever a page becomes so.
    """

    def __init__(self, n_pages: int) -> None:
        self._n_users = [0] * n_pages
        self._is_kept = [False] * n_pages
        self._free = list(range(n_pages - 1, -1, -1))
        self.n_idle = 0
        self.on_idle: Callable[[int], None] = lambda page: None

    @property
    def n_pages(self) -> int:
        return len(self._n_users)

    @property
    def n_free(self) -> int:
        return len(self._free)

    def n_users(self, page: int) -> int:
        """How many hold the page, its keeper included; 0 if it is free."""
        return self._n_users[page]

    def is_idle(self, page: int) -> bool:
        """Whether nobody but its keeper holds the page."""
        return self._is_kept[page] and self._n_users[page] == 1

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
        self.n_idle -= self.is_idle(page)
        self._n_users[page] += 1

    def release(self, page: int) -> None:
        """Takes a user from a page, which becomes free with the last one. Raises ValueError if it is free, or if the
        last one is its keeper."""
        self._check_held(page)
        if self.is_idle(page):
            raise ValueError(f"page {page} is its keeper's")
        self._n_users[page] -= 1
        if self._n_users[page] == 0:
            self._free.append(page)
        elif self.is_idle(page):
            self.n_idle += 1
            self.on_idle(page)

    def keep(self, page: int) -> None:
        """Adds the keeper to a page that is held. Raises ValueError if it is free, or has one."""
        if self._is_kept[page]:
            raise ValueError(f"page {page} has a keeper")
        self.share(page)
        self._is_kept[page] = True

    def give_up(self, page: int) -> None:
        """Takes the keeper from a page. Raises ValueError if it has none."""
        if not self._is_kept[page]:
            raise ValueError(f"page {page} has no keeper")
        self.n_idle -= self.is_idle(page)
        self._is_kept[page] = False
        self.release(page)

    def _check_held(self, page: int) -> None:
        if self._n_users[page] == 0:
            raise ValueError(f"page {page} is free")

"""The page allocator: pages are never handed out twice and never lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import DataObject, data, integers

from localllm.engine.errors import KVCacheFullError
from localllm.engine.pages import PageAllocator

N_PAGES = 7


def test_the_last_freed_comes_first() -> None:
    pages = PageAllocator(3)
    assert pages.take(3) == [0, 1, 2]
    pages.release(1)
    pages.release(0)
    assert pages.take(2) == [0, 1]


def test_too_many_takes_none() -> None:
    pages = PageAllocator(3)
    pages.take(1)
    with pytest.raises(KVCacheFullError):
        pages.take(3)
    assert pages.n_free == 2


def test_free_pages_are_neither_shared_nor_released() -> None:
    pages = PageAllocator(1)
    with pytest.raises(ValueError, match="page 0 is free"):
        pages.share(0)
    with pytest.raises(ValueError, match="page 0 is free"):
        pages.release(0)


class Allocation(RuleBasedStateMachine):
    """A list with one entry for each user of a page says what the allocator must know."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(N_PAGES)
        self.held: list[int] = []

    @rule(n=integers(0, N_PAGES))
    def take(self, n: int) -> None:
        n_free = N_PAGES - len(set(self.held))
        if n > n_free:
            with pytest.raises(KVCacheFullError):
                self.pages.take(n)
            return
        taken = self.pages.take(n)
        assert len(set(taken)) == n and not set(taken) & set(self.held)
        self.held += taken

    @precondition(lambda self: self.held)
    @rule(draw=data())
    def share(self, draw: DataObject) -> None:
        page = self.held[draw.draw(integers(0, len(self.held) - 1))]
        self.pages.share(page)
        self.held.append(page)

    @precondition(lambda self: self.held)
    @rule(draw=data())
    def release(self, draw: DataObject) -> None:
        self.pages.release(self.held.pop(draw.draw(integers(0, len(self.held) - 1))))

    @invariant()
    def counts_agree(self) -> None:
        assert self.pages.n_free == N_PAGES - len(set(self.held))
        assert [self.pages.n_users(page) for page in range(N_PAGES)] == [self.held.count(p) for p in range(N_PAGES)]


Allocation.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAllocation = Allocation.TestCase

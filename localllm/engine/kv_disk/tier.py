"""Decides which pages of the prefix tree go to disk, and gives those back that a prompt needs; how they lie there and
when they are written it leaves to others.

Kept are full pages of prefixes of at least MIN_PAGES, each once. A page leaves memory in one of three ways: written
behind while the engine is idle; copied when the tree gives it up, and written soon; written at the end of the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import weakref
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Tokens
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import numpy as np

from kernels_cpu.graph import PAGE_POSITIONS
from localllm.engine.backend import Bytes
from localllm.engine.kv_disk.page_file import PageId
from localllm.engine.kv_disk.settings import DiskSettings, identity_of
from localllm.engine.kv_disk.store import PageStore
from localllm.engine.kv_disk.writer import Writer
from localllm.engine.prefix_tree import Node

MIN_PAGES = 4
"""Prefixes of fewer pages are computed faster than they are worth a file."""

READERS, PAGES_AHEAD = 2, 16
"""Most of the time to read a page goes into memory that is new, which threads take at the same time."""

MAX_READ_BYTES = 512 << 20
"""What was read for prompts that wait for their turn takes no more than this, nor than half of the KV cache."""


class PageSource(Protocol):
    """What the tier needs of a backend."""

    @property
    def page_bytes(self) -> int: ...

    @property
    def kv_identity(self) -> str: ...

    def read_page(self, page: int) -> Bytes: ...


class ReadPage:
    """A page that was read for a prompt; it waits for as long as somebody holds this object, and no copy was made."""

    __slots__ = ("__weakref__", "content")

    def __init__(self, content: Bytes) -> None:
        self.content: Bytes | None = content


class DiskTier:
    """The pages of one engine. `prefetch` may be called by any thread, all else by that of the steps.

    `added` and `removed` tell it what happens in the prefix tree.
    """

    def __init__(self, settings: DiskSettings, source: PageSource, kv_cache_type: str, n_pages: int) -> None:
        identity = identity_of(settings, source.kv_identity, kv_cache_type)
        self._root = identity.encode()
        self._source = source
        self._store = PageStore(settings, identity, source.page_bytes)
        self._max_read = max(1, min(MAX_READ_BYTES // max(1, source.page_bytes), n_pages // 2))
        self._read: weakref.WeakValueDictionary[bytes, ReadPage] = weakref.WeakValueDictionary()
        # Held while a page of the tree is copied, so that the tree cannot give it up meanwhile.
        self._lock = threading.RLock()
        self.writer = Writer(self._store, self._copy, self._lock, source.page_bytes)

    # ---------------------------------------------------------------- the tree's news

    def added(self, node: Node) -> None:
        """A page is in the tree: it is to be kept, and so are those before it, where the prefix is worth it."""
        if node.depth < MIN_PAGES or len(node.tokens) < PAGE_POSITIONS or not self._store.is_on:
            return
        new: list[Node] = []
        while node.parent is not None and not node.is_kept:
            new.append(node)
            node = node.parent
        for node in reversed(new):
            node.is_kept = True
        self.writer.add(reversed(new))

    def removed(self, node: Node) -> None:
        """A page is about to leave the tree: if it was not written yet, a copy of it is."""
        self.writer.rescue(node)

    # -------------------------------------------------------------------- from the disk

    def prefetch(self, tokens: Tokens[int], key: Hashable, n_known: int) -> list[ReadPage]:
        """Read the full pages of `tokens` behind the first `n_known` of them, as far as they are on disk and there is
        room. They wait for `take` for as long as the caller holds what it gets."""
        pages = self._pages(tokens, key, n_known)
        first = next(pages, None)
        waiting = self._waiting(first) if first else None
        if first is None or waiting is None:
            return []  # as for most prompts: no thread is started
        found = [(first, waiting), *self._read_ahead(pages)]
        self._store.used(found[-1][0])
        return [waiting for _, waiting in found]

    def _read_ahead(self, pages: Iterator[PageId]) -> Iterator[tuple[PageId, ReadPage]]:
        """The pages up to the first that there is not."""
        with ThreadPoolExecutor(READERS) as pool:
            while part := list(islice(pages, PAGES_AHEAD)):
                for page, waiting in zip(part, pool.map(self._waiting, part), strict=True):
                    if waiting is None:
                        return
                    yield page, waiting

    def _waiting(self, page: PageId) -> ReadPage | None:
        """A page that was read for this prompt, or for another that waits; None where there is none, or no room."""
        waiting = self._read.get(page.chain)
        if waiting is None and len(self._read) < self._max_read:
            content = self._store.read(page)
            if content is not None:
                waiting = self._read[page.chain] = ReadPage(content)
        return waiting

    def n_at_hand(self, tokens: Tokens[int], key: Hashable, n_known: int) -> int:
        """How many pages `take` would give."""
        n = 0
        if len(self._read) or self.writer.has_rescued:
            for page in self._pages(tokens, key, n_known):
                if not self._is_at_hand(page):
                    break
                n += 1
        return n

    def take(self, tokens: Tokens[int], key: Hashable, n_known: int) -> Iterator[Bytes]:
        """The contents that wait for the pages of `tokens` behind the first n_known, and of pages that the tree gave up
        so lately that reading them is a copy too: those of a request, foremost, that gave way to others."""
        if not (len(self._read) or self.writer.has_rescued):
            return
        for page in self._pages(tokens, key, n_known):
            content = self._at_hand(page)
            if content is None:
                return
            yield content
            if waiting := self._read.pop(page.chain, None):
                waiting.content = None

    def _is_at_hand(self, page: PageId) -> bool:
        waiting = self._read.get(page.chain)
        if waiting is not None and waiting.content is not None:
            return True
        return self.writer.rescued(page) is not None or self.writer.was_just_written(page)

    def _at_hand(self, page: PageId) -> Bytes | None:
        waiting = self._read.get(page.chain)
        if waiting is not None and waiting.content is not None:
            return waiting.content
        content = self.writer.rescued(page)
        if content is None and self.writer.was_just_written(page):
            content = self._store.read(page)
        return content

    def restored(self, node: Node) -> None:
        """A page of the tree came from the disk: it need not go there."""
        node.is_kept = True
        self.writer.forget(node)

    # ------------------------------------------------------------------------- to the disk

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Around a step: nothing is written behind meanwhile."""
        self.writer.step_begins()
        try:
            yield
        finally:
            self.writer.step_ended()

    def save(self, timeout_s: float) -> None:
        """Write what is not on disk, the newest first, for at most so long. Steps may go on meanwhile."""
        self.writer.finish(timeout_s)

    def close(self) -> None:
        """End the thread that writes."""
        self.writer.close()

    def _copy(self, node: Node) -> tuple[PageId, Bytes] | None:
        """A page of the tree, None where the disk has it already or memory has no room. The lock is held."""
        page = self._id(node)
        if self._store.has(page):
            self._store.used(page)
            return None
        try:
            return page, self._source.read_page(node.page)
        except MemoryError:
            return None

    def _id(self, node: Node) -> PageId:
        path = [node]
        while (above := path[-1].parent) is not None and not path[-1].chain:
            path.append(above)
        for one in reversed(path):
            if not one.chain:
                one.chain = self._root_of(one.key) if one.parent is None else _next(one.parent.chain, one.tokens)
        assert node.parent is not None
        return PageId(node.chain, node.parent.chain, _packed(node.tokens))

    def _pages(self, tokens: Tokens[int], key: Hashable, n_known: int) -> Iterator[PageId]:
        """The full pages of tokens, without the first n_known."""
        packed = _packed(tokens)
        n_bytes = 4 * PAGE_POSITIONS
        chain = self._root_of(key)
        for i in range(len(tokens) // PAGE_POSITIONS):
            own = packed[i * n_bytes : (i + 1) * n_bytes]
            before, chain = chain, _chained(chain, own)
            if i >= n_known:
                yield PageId(chain, before, own)

    def _root_of(self, key: Hashable) -> bytes:
        return _chained(self._root, repr(key).encode())


def _packed(tokens: Tokens[int]) -> bytes:
    return np.asarray(tokens, "<i4").tobytes()


def _chained(before: bytes, what: bytes) -> bytes:
    return hashlib.blake2b(what, key=before[:64], digest_size=32).digest()


def _next(before: bytes, tokens: Tokens[int]) -> bytes:
    return _chained(before, _packed(tokens))

"""The thread that writes pages to disk, when that disturbs nobody; it knows neither tokens nor files.

While the engine is idle it copies pages of the tree and writes them, newest prefixes first, each after those before it.
While steps run it writes only copies of what the tree gave up, and rests most of the time: a core that it takes is one
that a step waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Protocol

from localllm.engine.backend import Bytes
from localllm.engine.kv_disk.page_file import PageId
from localllm.engine.prefix_tree import Node

IDLE_S = 1.0
"""The engine counts as idle so long after a step."""

REST = 20
"""While steps run, the thread rests so many times as long as it worked."""

MAX_JUST_WRITTEN = 512
"""Pages of which this is remembered."""

MAX_RESCUED_BYTES = 64 << 20
"""Copies of pages that the tree gave up; beyond that those at the end of prefixes are dropped."""

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Where pages go."""

    is_on: bool

    def write(self, page: PageId, content: Bytes) -> bool: ...


class Writer:
    """`copy(node)` gives a page of the tree, None where that need not be written; it is called with `lock` held, which
    whoever removes a page from the tree must hold meanwhile too."""

    def __init__(
        self,
        sink: Sink,
        copy: Callable[[Node], tuple[PageId, Bytes] | None],
        lock: threading.RLock,
        page_bytes: int,
    ) -> None:
        self._sink = sink
        self._copy = copy
        self._changed = threading.Condition(lock)
        self._unwritten: dict[Node, None] = {}  # pages of the tree, in the order in which they came
        self._path: list[Node] = []  # some of these, to be written from the last on
        self._rescued: deque[tuple[PageId, Bytes]] = deque(maxlen=max(8, MAX_RESCUED_BYTES // max(1, page_bytes)))
        self._just_written: OrderedDict[bytes, None] = OrderedDict()  # chains of pages that the tree gave up
        self._thread: threading.Thread | None = None
        self._is_asleep = False
        self._is_closed = False
        self._is_stepping = False
        self._stepped_s = 0.0
        self._rested_s = 0.0
        self.n_written = 0

    def add(self, nodes: Iterable[Node]) -> None:
        """Pages of the tree to be written, each after those before it."""
        with self._changed:
            self._unwritten.update(dict.fromkeys(nodes))
            self._wake()

    def forget(self, node: Node) -> None:
        """A page need not be written."""
        with self._changed:
            self._unwritten.pop(node, None)

    def rescue(self, node: Node) -> None:
        """Copy a page that is about to leave the tree, if it is still to be written."""
        with self._changed:
            if node not in self._unwritten:
                return
            del self._unwritten[node]
            copied = self._copy(node) if self._sink.is_on else None
            if copied is not None:
                self._rescued.append(copied)
                self._wake(is_urgent=len(self._rescued) == 1)

    @property
    def has_rescued(self) -> bool:
        """Whether the tree gave pages up lately."""
        return bool(self._rescued or self._just_written)

    def rescued(self, page: PageId) -> Bytes | None:
        """The copy of a page that the tree gave up, while that waits to be written."""
        with self._changed:
            return next((content for waiting, content in self._rescued if waiting.chain == page.chain), None)

    def was_just_written(self, page: PageId) -> bool:
        """Whether a page that the tree gave up was written so lately that the system has it in memory, most likely."""
        return page.chain in self._just_written

    def step_begins(self) -> None:
        """The engine computes from now on."""
        self._is_stepping = True

    def step_ended(self) -> None:
        """The engine computes no longer."""
        self._stepped_s = time.monotonic()
        self._is_stepping = False

    def finish(self, timeout_s: float) -> None:
        """Write all that is left in the caller's thread, for at most so long; nothing is written afterwards."""
        end_s = time.monotonic() + timeout_s
        self._end_thread(timeout_s)
        n_left = 0
        while (job := self._take(is_idle=True)) is not None and self._sink.is_on:
            if time.monotonic() >= end_s:
                n_left = 1 + len(self._unwritten) + len(self._rescued)
                break
            self._write(*job)
        if n_left:
            logger.info("%d pages of prompts were not written for want of time", n_left)

    def close(self) -> None:
        """End the thread; what is not written is lost."""
        self._end_thread(None)

    def _end_thread(self, timeout_s: float | None) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _wake(self, is_urgent: bool = False) -> None:
        """The lock is held. A thread that waits for the engine to be idle looks by itself, unless this is urgent."""
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._run, name="kv_disk_writer", daemon=True)
            self._thread.start()
        elif self._is_asleep or is_urgent:
            self._changed.notify_all()

    def _run(self) -> None:
        while self._wait():
            began_s = time.monotonic()
            job = self._take(self._is_idle())
            if job is not None:
                self._write(*job)
                self._note_written(job[0])
            ended_s = time.monotonic()
            self._rested_s = ended_s + REST * (ended_s - began_s)

    def _wait(self) -> bool:
        """Wait until there is something to do now; False once it is over."""
        with self._changed:
            while not self._is_closed:
                wait_s = self._wait_s()
                if wait_s == 0:
                    return True
                self._is_asleep = wait_s is None
                self._changed.wait(wait_s)
                self._is_asleep = False
            return False

    def _wait_s(self) -> float | None:
        """How long nothing is to be done, None where nothing is left."""
        if not self._sink.is_on:
            self._unwritten.clear()
            self._rescued.clear()
        if not self._unwritten and not self._rescued:
            return None
        if self._is_idle():
            return 0
        now_s = time.monotonic()
        if self._rescued:
            return max(0, self._rested_s - now_s)
        return max(0.01, IDLE_S if self._is_stepping else self._stepped_s + IDLE_S - now_s)

    def _is_idle(self) -> bool:
        return not self._is_stepping and time.monotonic() - self._stepped_s >= IDLE_S

    def _take(self, is_idle: bool) -> tuple[PageId, Bytes] | None:
        """What to write next: of what was given up the last, which others begin with, then pages of the tree."""
        with self._changed:
            if self._rescued:
                return self._rescued.pop()
            while is_idle and self._unwritten:
                copied = self._copy(self._next())
                if copied is not None:
                    return copied
            return None

    def _next(self) -> Node:
        """The first page, of those that are not written, of the prefix that came last."""
        while self._path:
            node = self._path.pop()
            if node in self._unwritten:
                del self._unwritten[node]
                return node
        node = next(reversed(self._unwritten))
        while node in self._unwritten:
            self._path.append(node)
            assert node.parent is not None
            node = node.parent
        return self._next()

    def _note_written(self, page: PageId) -> None:
        self._just_written[page.chain] = None
        if len(self._just_written) > MAX_JUST_WRITTEN:
            self._just_written.popitem(last=False)

    def _write(self, page: PageId, content: Bytes) -> None:
        self.n_written += self._sink.write(page, content)

"""One blob from a server into its partial file, several parts at once; it knows nothing of stores or registries.

A thread takes part after part; a part whose connection breaks or is refused for now is asked for again from where
it is. The first part goes ahead: what the server answers tells whether it knows ranges, and a server that does not
is read once from the start.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

import httpx

from registry.download.hashing import PrefixHasher
from registry.download.partial import N_PARTS, Part, Partial
from registry.errors import DownloadError, RemoteError, SourceError, UnreachableError
from registry.progress import Progress, check_canceled, pulling
from registry.remote import Patience, iter_body

# Opens the blob with these headers; the body is yet to be read. Raises RemoteError, UnreachableError.
Open = Callable[[Mapping[str, str]], AbstractContextManager[httpx.Response]]

_INTERVAL_S = 0.06
_WRITE_BYTES = 1 << 20
_JOIN_S = 5.0
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)")


class _NoRangesError(Exception):
    """The server sends the whole blob whatever it is asked for."""


class Download:
    """Fills `partial`, which stays usable when this ends early."""

    def __init__(
        self, partial: Partial, wanted: str, open_blob: Open, patience: Patience, cancel: threading.Event
    ) -> None:
        self._partial = partial
        self._wanted = wanted
        self._open = open_blob
        self._patience = patience
        self._cancel = cancel
        self._shown = 0
        self.digest = ""

    def run(self) -> Iterator[Progress]:
        """Download and hash, yielding events of which none tells less than the one before; `digest` is then known.

        Raises:
            DownloadError: the server's or the connection's fault, after all patience.
            NoSpaceError, StoreNotWritableError, PullCanceledError.
        """
        hasher = PrefixHasher(self._partial)
        hasher.start()
        try:
            try:
                yield from self._fetch()
            except _NoRangesError:
                hasher = _replaced(hasher, self._partial)
                yield from self._fetch()
            while hasher.is_alive():
                hasher.join(_INTERVAL_S)
                check_canceled(self._cancel)
                yield self._event()
            if hasher.error is not None:
                raise hasher.error
        finally:
            hasher.stop()
            hasher.join()
        self.digest = hasher.digest

    def _fetch(self) -> Iterator[Progress]:
        workers = _Workers(self._partial, self._open, self._patience)
        workers.start()
        try:
            yield self._event()
            while not workers.are_done(_INTERVAL_S):
                check_canceled(self._cancel)
                yield self._event()
        finally:
            workers.stop()
        if workers.error is not None:
            raise workers.error
        yield self._event()

    def _event(self) -> Progress:
        # A part that begins again, and parts that become one, do not take back what was shown.
        self._shown = max(self._shown, self._partial.completed)
        return pulling(self._wanted, self._partial.size, self._shown)


class _Workers:
    """The threads of one attempt at all missing parts; the first error stops them all."""

    def __init__(self, partial: Partial, open_blob: Open, patience: Patience) -> None:
        self._partial = partial
        self._open = open_blob
        self._patience = patience
        self._queue = deque(part for part in partial.parts if not part.is_complete)
        self._threads = [
            threading.Thread(target=self._work, name="part of a download", daemon=True)
            for _ in range(min(N_PARTS, len(self._queue)))
        ]
        self._stopped = threading.Event()
        self._may_start = threading.Event()
        self._lock = threading.Lock()
        self._open_responses: set[httpx.Response] = set()
        self.error: Exception | None = None

    def start(self) -> None:
        for thread in self._threads[:1]:
            thread.start()

    def are_done(self, timeout_s: float) -> bool:
        """Wait a little for the end of all threads; starts the others once the first one may be followed."""
        if self._may_start.wait(timeout_s) and not self._stopped.is_set():
            for thread in self._threads:
                if thread.ident is None and self._queue:
                    thread.start()
        running = [thread for thread in self._threads if thread.is_alive()]
        if running:
            running[-1].join(timeout_s)
        return not running

    def stop(self) -> None:
        """End all threads; those that wait for a server are woken by closing its connections."""
        self._stop()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0.0))

    def _stop(self) -> None:
        self._stopped.set()
        with self._lock:
            for response in self._open_responses:
                _shut(response)

    def _work(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    part = self._queue.popleft()
                except IndexError:
                    break
                self._complete(part)
        except Exception as error:
            with self._lock:
                self.error = self.error or error
            self._stop()
        finally:
            self._may_start.set()

    def _complete(self, part: Part) -> None:
        n_failed = 0
        while not part.is_complete and not self._stopped.is_set():
            before = part.completed
            try:
                self._request(part)
            except (RemoteError, UnreachableError) as error:
                if self._stopped.is_set():
                    return
                n_failed = 0 if part.completed > before else n_failed
                if isinstance(error.__cause__, httpx.ReadTimeout):
                    continue
                n_failed += 1
                if not _may_pass(error):
                    raise
                if n_failed >= self._patience.n_tries:
                    raise DownloadError(error) from error
                self._patience.wait(n_failed - 1, self._stopped, getattr(error, "retry_after", None))

    def _request(self, part: Part) -> None:
        start, stop = part.offset + part.completed, part.offset + part.size
        is_whole = start == 0 and stop == self._partial.size
        headers = {} if is_whole else {"Range": f"bytes={start}-{stop - 1}"}
        with self._open(headers) as response, self._tracked(response):
            if self._stopped.is_set():
                # The files may be another download's by now.
                return
            n_skipped = self._check(response, part, start)
            self._may_start.set()
            self._copy(response, part, n_skipped)
        if not part.is_complete and not self._stopped.is_set():
            raise UnreachableError(response.request.url.netloc.decode(), "the connection ended too early")

    def _check(self, response: httpx.Response, part: Part, start: int) -> int:
        """How many bytes at the beginning of the body are not wanted."""
        size = _whole_size(response)
        if size not in (None, self._partial.size):
            host = response.request.url.netloc.decode()
            detail = f"the blob has {size} bytes there, not {self._partial.size} as promised"
            raise RemoteError(host, response.status_code, detail)
        if response.status_code == 206:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if found is None or int(found[1]) != start:
                host = response.request.url.netloc.decode()
                raise RemoteError(host, 206, f"sends another range than the one from byte {start} on")
            return 0
        if len(self._partial.parts) > 1:
            raise _NoRangesError
        return start

    def _copy(self, response: httpx.Response, part: Part, n_skipped: int) -> None:
        pieces: list[bytes] = []
        n_held, write_s = 0, 0.0
        try:
            for piece in iter_body(response, self._patience.stall_s):
                if n_skipped >= len(piece):
                    n_skipped -= len(piece)
                    continue
                pieces.append(piece[n_skipped:] if n_skipped else piece)
                n_held += len(piece) - n_skipped
                n_skipped = 0
                # A body that goes on after what was asked for may never end.
                if self._stopped.is_set() or n_held > part.size - part.completed:
                    break
                if n_held >= _WRITE_BYTES or time.monotonic() >= write_s:
                    # A write that fails is not tried again below.
                    held, pieces, n_held = pieces, [], 0
                    write_s = time.monotonic() + _INTERVAL_S
                    self._partial.write(part, held)
        finally:
            self._partial.write(part, pieces)
            self._partial.save(part)

    @contextlib.contextmanager
    def _tracked(self, response: httpx.Response) -> Iterator[None]:
        with self._lock:
            self._open_responses.add(response)
        try:
            yield
        finally:
            with self._lock:
                self._open_responses.discard(response)


def _replaced(hasher: PrefixHasher, partial: Partial) -> PrefixHasher:
    hasher.stop()
    hasher.join()
    partial.join()
    fresh = PrefixHasher(partial)
    fresh.start()
    return fresh


def _shut(response: httpx.Response) -> None:
    """Wake the thread that reads this."""
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _may_pass(error: SourceError) -> bool:
    return not isinstance(error, RemoteError) or error.status in (408, 425, 429) or error.status >= 500


def _whole_size(response: httpx.Response) -> int | None:
    """The size of the blob as an answer tells it (RFC 9110, 14.4 and 8.6)."""
    if response.status_code == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        return int(match[2]) if match and match[2] != "*" else None
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None

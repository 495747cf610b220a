"""Processes that work through a list of names together; what is done with a name, they are told.

Each gets the next name when it is done with the last. A process ends when its standard input does, at once: its parent
is gone then.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import BinaryIO, NoReturn, Protocol

from numba.core.compiler_lock import global_compiler_lock

Progress = Callable[[int, int], None]
Work = Callable[[str], None]

CAN_FORK = sys.platform == "linux"
POLL_S = 0.03
# An empty line tells a process that there is no more to do.
NO_MORE = b"\n"


class Worker(Protocol):
    """A process that was started, as subprocess.Popen gives it."""

    @property
    def stdin(self) -> BinaryIO | None: ...

    @property
    def stdout(self) -> BinaryIO | None: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


Start = Callable[[BinaryIO], Worker]
"""Starts a process whose errors go to a file."""


def spawned(command: list[str], env: dict[str, str], folder: str) -> Start:
    """Processes of a command, which must call `serve`."""

    def start(log: BinaryIO) -> Worker:
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, cwd=folder, stdin=pipe, stdout=pipe, stderr=log)  # type: ignore[return-value]

    return start


def forked(work: Work) -> Start:
    """Copies of this process, which have imported and set up already what takes a second. Linux only.

    The one lock that another thread might hold and that a copy needs is Numba's, which is taken for the moment.
    """

    def start(log: BinaryIO) -> Worker:
        theirs, names = os.pipe()
        answers, ours = os.pipe()
        with global_compiler_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, which the copy does without
            pid = os.fork()
        if pid == 0:
            _be_worker(work, theirs, ours, log.fileno())
        os.close(theirs)
        os.close(ours)
        return _Forked(pid, os.fdopen(names, "wb"), os.fdopen(answers, "rb"))

    return start


def _be_worker(work: Work, names: int, answers: int, log: int) -> None:
    """What a copy does: with nothing open but its three streams, so that others see the ends of theirs."""
    try:
        for place, file in enumerate((names, answers, log)):
            os.dup2(file, place)
        for file in map(int, os.listdir("/proc/self/fd")):
            if file > 2:
                with contextlib.suppress(OSError):  # that of the list is closed already
                    os.close(file)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        serve(work)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(1)


def serve(work: Work) -> NoReturn:
    """Do the work for every name that stdin gives, one a line, and answer each with a line: the body of a process."""
    answers, names = os.dup(1), queue.SimpleQueue[str]()
    os.dup2(2, 1)  # whatever else prints to stdout
    threading.Thread(target=_read_names, args=(names,), daemon=True).start()
    gc.disable()  # a compiler's garbage is not worth the search: a fifth of its time
    while name := names.get():
        work(name)
        os.write(answers, b"\n")
    os._exit(0)  # at once: the thread is inside a read


def _read_names(names: queue.SimpleQueue[str]) -> None:
    pending = b""
    while block := os.read(0, 1 << 16):
        *lines, pending = (pending + block).split(b"\n")
        for line in lines:
            names.put(line.decode())
    os._exit(1)


class _Forked:
    """A copy of this process."""

    def __init__(self, pid: int, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self.stdin, self.stdout = stdin, stdout
        self._pid = pid
        self._status: int | None = None

    def kill(self) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._status


class Workers:
    """Some processes and what they have to do."""

    def __init__(self, names: Iterable[str], start: Start, n_processes: int) -> None:
        self._todo = deque(names)
        self._n_names = len(self._todo)
        self._done: list[str] = []
        self._start = start
        self._workers: list[Worker] = []
        self._logs: list[BinaryIO] = []
        self._n_processes = min(n_processes, self._n_names)

    def run(self, progress: Progress, check: Callable[[int, str], None]) -> None:
        """Do it all; `check` gets each process's exit status and what it wrote to stderr.

        Whatever ends this early, an interrupt or an error, ends the processes.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            for _ in range(self._n_processes):
                self._logs.append(tempfile.TemporaryFile())  # noqa: SIM115  (closed by _end)
                self._workers.append(self._start(self._logs[-1]))
            threads = [threading.Thread(target=self._feed, args=(worker,), daemon=True) for worker in self._workers]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                progress(len(self._done), self._n_names)
                time.sleep(POLL_S)
            for worker, log in zip(self._workers, self._logs, strict=True):
                status = worker.wait()
                log.seek(0)
                check(status, log.read().decode(errors="replace"))

    def _feed(self, worker: Worker) -> None:
        """Give a process work until there is no more, or until it is gone."""
        assert worker.stdin is not None and worker.stdout is not None
        try:
            while self._todo:
                name = self._todo.popleft()
                worker.stdin.write(name.encode() + b"\n")
                worker.stdin.flush()
                if not worker.stdout.readline():
                    break
                self._done.append(name)
            worker.stdin.write(NO_MORE)
            worker.stdin.flush()
            worker.stdout.read()
        except (OSError, IndexError, ValueError):
            pass  # it ended, as its status tells; or another thread took the last name

    def _end(self) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
        for log in self._logs:
            log.close()

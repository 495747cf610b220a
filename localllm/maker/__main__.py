"""`python -m localllm.maker`: reads a job, does it, and says how far it is; standard error is its log."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

import psutil

from localllm.errors import LocalLLMError

NICENESS = 10
INTERVAL_S = 0.1


class _Answers:
    """Lines of JSON on a pipe; progress at most once an interval, and not again what was told."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._next_s = 0.0

    def send(self, **fields: Any) -> None:
        self._pipe.write(json.dumps(fields).encode() + b"\n")
        self._pipe.flush()

    def progress(self, completed: int, total: int) -> None:
        if time.monotonic() >= self._next_s or completed == total:
            self._next_s = time.monotonic() + INTERVAL_S
            self.send(completed=completed, total=total)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the daemon's whole group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    answers = _Answers(_private_stdout())
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    _yield_to_others()
    try:
        _run(line, answers)
    except LocalLLMError as error:
        answers.send(error=str(error), hint=error.hint)
    except MemoryError:
        answers.send(error="not enough memory for this conversion", hint="unload models with `localllm stop`")
    except OSError as error:
        hint = "free some space" if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)) else None
        answers.send(error=f"conversion failed: {error.strerror or error}", hint=hint)
    else:
        answers.send(done=True)
    os._exit(0)  # at once: threads may be inside of a long step


def _run(line: bytes, answers: _Answers) -> None:
    # Only now: what this imports takes a second, in which a signal may come.
    from localllm.maker.jobs import run

    run(json.loads(line), answers.progress)


def _end_with_stdin() -> None:
    """The daemon has died, or nobody waits any longer."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(1)


def _yield_to_others() -> None:
    if sys.platform == "win32":
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
    else:
        os.nice(NICENESS)


def _private_stdout() -> BinaryIO:
    """Keep the pipe to ourselves: whatever else prints to standard output goes to the log."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


if __name__ == "__main__":
    main()

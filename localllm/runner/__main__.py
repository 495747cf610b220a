"""`python -m localllm.runner` serves one model over its stdin and stdout; stderr is its log."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from typing import BinaryIO

from localllm.tracebacks import PlacesOnly, log_unhandled


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the daemon's whole group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    frames = _private_stdout()
    start_log()

    # only now: what these import takes a second, in which a signal may come
    from kernels_cpu.team import load_cached
    from localllm.runner.outbox import Outbox
    from localllm.runner.service import Service

    load_cached()
    gc.freeze()  # modules stay: looking for garbage in them takes a tenth of a second each time
    Service(Outbox(frames)).serve(sys.stdin.buffer)
    os._exit(0)  # at once: threads may be inside a long step


def start_log() -> None:
    """Write to stderr, which the daemon's log takes up; like that one, without a request's text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlacesOnly("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    log_unhandled(logging.getLogger(__name__))


def _private_stdout() -> BinaryIO:
    """Keep the pipe to ourselves: whatever else prints to stdout goes to the log."""
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return frames


if __name__ == "__main__":
    main()

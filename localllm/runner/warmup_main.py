"""`python -m localllm.runner.warmup_main` runs a Warmup for the command line.

On stdin one line, the Warmup as a JSON object; on stdout one JSON object a line, what it sends, or an `error` with its
`hint`, after which the exit status is 1. It ends when stdin does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt has nothing to tidy up, and no traceback to show
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints to stdout

    def send(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")

    send({"status": "starting"})
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()

    # only now: what these import takes a second, in which the parent may go
    from kernels_cpu import KernelError
    from localllm.errors import LocalLLMError
    from localllm.runner.warmup import Warmup

    try:
        Warmup(**request).run(send)
    except (LocalLLMError, KernelError, OSError) as error:
        send({"error": str(error), "hint": getattr(error, "hint", None)})
        os._exit(1)
    os._exit(0)  # at once: a thread is inside a read


def _exit_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()

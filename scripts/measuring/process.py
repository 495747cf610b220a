"""Runs a command and tells how long it took and how much memory it had; needs only the standard library.

As a program, `process.py COMMAND...`, it is a small process between the benchmark and the command: the peak that
the system reports for a child begins with the size of the process that started it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """A command that succeeded: what it printed, its seconds from start to end, its largest resident memory."""

    output: str
    seconds: float
    peak_bytes: int


def run(command: list[str], env: dict[str, str] | None = None) -> Ended:
    """Run a command in a process of its own. Raises: SystemExit if it fails."""
    done = subprocess.run([sys.executable, __file__, *command], env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"Error: {' '.join(command)}: exit status {done.returncode}")
    output, _, measured = done.stdout.rstrip("\n").rpartition("\n")
    return Ended(output, **json.loads(measured))


def main() -> int:
    """Run the command of the command line; a last line of its output says what it took."""
    start = time.perf_counter()
    child = subprocess.Popen(sys.argv[1:])
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": usage.ru_maxrss * unit}))
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())

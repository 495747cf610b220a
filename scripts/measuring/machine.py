"""What the machine is, in words; it does not measure it."""

from __future__ import annotations

import platform
from pathlib import Path

from kernels_cpu.target import TARGET


def processor() -> str:
    """The CPU's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def machine(n_threads: int) -> dict[str, str | int]:
    """For the JSON of a benchmark: the CPU, the path of the kernels and the number of threads."""
    return {"cpu": processor(), "path": TARGET.path, "threads": n_threads}

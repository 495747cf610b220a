"""Times quantising a file, here and by llama-quantize, each in a process of its own; it looks at no weights."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import process, quantize_once


def compare(model: str, kind: str, peer: str | None, n_threads: int, n_rounds: int) -> dict[str, Any]:
    """Seconds, peak memory and the ratio of times; `peer` is llama-quantize's path, None for ours alone.

    Files are made beside the model, on the same disk, and removed at once.
    """
    ours: list[process.Ended] = []
    theirs: list[process.Ended] = []
    commands = {"ours": (ours, [sys.executable, quantize_once.__file__])}
    if peer:
        commands["theirs"] = (theirs, [peer])
    take_one([sys.executable, quantize_once.__file__], model, kind, n_threads)
    for i in range(n_rounds):
        for name in sorted(commands, reverse=bool(i % 2)):
            ended, command = commands[name]
            ended.append(take_one(command, model, kind, n_threads))
    return described(model, kind, ours, theirs)


def take_one(command: list[str], model: str, kind: str, n_threads: int) -> process.Ended:
    """Run a program that takes source, destination, type and threads."""
    with tempfile.TemporaryDirectory(dir=Path(model).parent) as folder:
        return process.run([*command, model, f"{folder}/made.gguf", kind, str(n_threads)])


def described(model: str, kind: str, ours: list[process.Ended], theirs: list[process.Ended]) -> dict[str, Any]:
    """The figures for the JSON."""
    found = {"model": Path(model).name, "type": kind, "source_bytes": Path(model).stat().st_size, **of_side("", ours)}
    if theirs:
        ratios = [a.seconds / b.seconds for a, b in zip(ours, theirs, strict=True)]
        found |= {**of_side("their_", theirs), "ratio": statistics.median(ratios)}
    return found


def of_side(prefix: str, ended: list[process.Ended]) -> dict[str, float]:
    """Medians of one side."""
    return {
        f"{prefix}seconds": statistics.median(one.seconds for one in ended),
        f"{prefix}peak_bytes": statistics.median(one.peak_bytes for one in ended),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    rate = found["source_bytes"] / found["seconds"]
    text = [f"{found['model']} to {found['type']}", _line("here", found, "") + f", {rate / 1e6:.0f} MB/s of the source"]
    if "ratio" in found:
        text += [_line("llama-quantize", found, "their_"), f"  time here ÷ llama-quantize's: {found['ratio']:.2f}"]
    return text


def _line(side: str, found: dict[str, Any], prefix: str) -> str:
    seconds, peak = found[f"{prefix}seconds"], found[f"{prefix}peak_bytes"]
    return f"  {side:15} {seconds:6.2f} s, at most {peak / 1e6:.0f} MB in memory"

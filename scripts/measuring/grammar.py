"""Compares engines of constrained output over schemas with instances, each case on all engines in turn."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from measuring.grammar_cases import Case
from measuring.grammar_worker import Result, serve

START_S = 300.0  # an engine may take so long to load, kernels that must be compiled included
PERCENTILES = (50, 90, 99)


class MissingEngineError(Exception):
    """An engine's package is missing."""


class Worker:
    """An engine in a process of its own, which is begun anew after it hung or died."""

    def __init__(self, name: str, vocabulary: str, eos: str | None, whitespace: str) -> None:
        self._arguments = name, vocabulary, eos, whitespace
        self.version = self._start()

    def run(self, case: Case, limit_s: float) -> Result:
        """The result of a case; a `failed` one where it takes longer than `limit_s`, or the process dies of it."""
        try:
            self._pipe.send(case)
            if self._pipe.poll(limit_s):
                found: Result = self._pipe.recv()
                return found
            failed = "timed out"
        except (EOFError, OSError):
            failed = "the process died"
        self.close()
        self._start()
        return Result(failed=failed)

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _start(self) -> str:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            answer = self._pipe.recv() if self._pipe.poll(START_S) else TimeoutError("it does not start")
        except EOFError:
            answer = OSError("the process died at its start")
        if isinstance(answer, ImportError):
            self.close()
            raise MissingEngineError(str(answer)) from answer
        if isinstance(answer, Exception):
            self.close()
            raise answer
        return str(answer)


@dataclass
class Side:
    """The results of one engine, a case each."""

    name: str
    version: str
    results: list[Result] = field(default_factory=list)


def compare(
    workers: Sequence[tuple[str, Worker]], cases: Sequence[Case], limit_s: float, report: Callable[[int], None]
) -> list[Side]:
    """Every case on each engine, who goes first by turns; `report` is told the cases done."""
    sides = [Side(name, worker.version) for name, worker in workers]
    for number, case in enumerate(cases):
        turns = range(len(workers))
        for turn in turns:
            place = (turn + number) % len(workers)
            sides[place].results.append(workers[place][1].run(case, limit_s))
        report(number + 1)
    return sides


def figures(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """What is told of each side. Times are over the cases that all take: compiles in ms, masks and accepts in us."""
    n = len(sides[0].results)
    shared = [i for i in range(n) if all(_is_taken(side.results[i]) for side in sides)]
    return [_figures(side, shared) for side in sides]


def _is_taken(result: Result) -> bool:
    return result.refused is None and result.failed is None


def _figures(side: Side, shared: list[int]) -> dict[str, Any]:
    taken = [result for result in side.results if _is_taken(result)]
    reasons = Counter(result.refused.split(":")[0] for result in side.results if result.refused is not None)
    return {
        "engine": side.name,
        "version": side.version,
        "cases": len(side.results),
        "taken": len(taken),
        "refused": sum(reasons.values()),
        "failed": [result.failed for result in side.results if result.failed is not None],
        "false_accepts": sum(len(result.false_accepts) for result in side.results),
        "false_rejects": sum(len(result.false_rejects) for result in side.results),
        "reasons": dict(reasons.most_common(12)),
        "shared": len(shared),
        "compile_ms": _times([side.results[i].compile_ns for i in shared], 1e6),
        "mask_us": _times((ns for i in shared for ns in side.results[i].mask_ns), 1e3),
        "accept_us": _times((ns for i in shared for ns in side.results[i].accept_ns), 1e3),
    }


def _times(samples_ns: Iterable[int], unit_ns: float) -> dict[str, float]:
    samples = np.fromiter(samples_ns, np.float64) / unit_ns
    if not len(samples):
        return {}
    found = {f"p{q}": float(value) for q, value in zip(PERCENTILES, np.percentile(samples, PERCENTILES), strict=True)}
    return {"n": len(samples), "mean": float(samples.mean()), **found, "max": float(samples.max())}


def lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """The figures for people."""
    told = []
    for side in found:
        told.append(
            f"{side['engine']} {side['version']}: takes {side['taken']} of {side['cases']} schemas "
            f"({side['taken'] / side['cases']:.1%}), fails at {len(side['failed'])}; "
            f"{side['false_accepts']} false accepts, {side['false_rejects']} false rejects"
        )
        for what, unit in (("compile", "ms"), ("mask", "us"), ("accept", "us")):
            times = side[f"{what}_{unit}"]
            if times:
                parts = " / ".join(f"{times[f'p{q}']:.3g}" for q in PERCENTILES)
                told.append(
                    f"    {what}: mean {times['mean']:.3g} {unit}; p50 / p90 / p99 {parts}; "
                    f"max {times['max']:.3g} ({times['n']} in {side['shared']} schemas that all take)"
                )
    return told

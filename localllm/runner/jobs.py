"""Jobs of vectors between the steps of the batch; it knows nothing of generations."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from localllm.runner.budget import Budget, Part
from localllm.runner.meter import Meter
from localllm.runner.vectors import STEP_ROWS, VectorJob


class PagesLike(Protocol):
    """What is asked of an engine here."""

    @property
    def n_pages_free(self) -> int: ...


class Jobs:
    """One job at a time has a step of its own after those of the batch, whose lock this shares.

    Beside decoding, such a step takes the place of a chunk of prefill: each kind has every other turn. A job that finds
    no room in the KV cache, or that had to give its own back, waits until there is more.
    """

    def __init__(
        self,
        engine: PagesLike,
        budget: Budget,
        meter: Meter,
        changed: threading.Condition,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._budget = budget
        self._meter = meter
        self._changed = changed
        self._clock = clock
        self._jobs: deque[VectorJob] = deque()
        self._n_free_too_few: int | None = None
        self._had_turn = False

    def __len__(self) -> int:
        return len(self._jobs)

    def append(self, job: VectorJob) -> None:
        """Take on a job; the caller holds the lock."""
        self._jobs.append(job)

    def has(self, request_id: str) -> bool:
        """Whether a job of this request is here; the caller holds the lock."""
        return any(job.id == request_id for job in self._jobs)

    def cancel(self, request_ids: set[str]) -> None:
        """End the jobs of these requests without a message."""
        with self._changed:
            canceled = [job for job in self._jobs if job.id in request_ids]
        for job in canceled:
            job.close()
            self._remove(job)

    def next(self, is_nobody_else: bool) -> VectorJob | None:
        """The job whose turn it is: the first that somebody waits for, or else the first if there is nobody else."""
        with self._changed:
            job = next((job for job in self._jobs if job.is_interactive), None)
            return self._jobs[0] if job is None and is_nobody_else and self._jobs else job

    def has_turn(self) -> bool:
        """Whether the next step beside decoding is the job's rather than one of prompts."""
        self._had_turn = not self._had_turn and not self._is_short
        return self._had_turn

    @property
    def waits_for_room(self) -> bool:
        """Whether somebody's job waits for pages, so that nobody else should be given them."""
        return self._is_short and self.next(is_nobody_else=False) is not None

    def give_way(self) -> bool:
        """Give back the pages of all jobs, whose inputs begin anew; False where they held none."""
        with self._changed:
            jobs = list(self._jobs)
        is_more = self._close(jobs)
        if is_more:
            self._n_free_too_few = self._engine.n_pages_free
        return is_more

    def give_way_to_interactive(self) -> bool:
        """The same for those that nobody waits for, and that have no turn while others do."""
        with self._changed:
            jobs = [job for job in self._jobs if not job.is_interactive]
        return self._close(jobs)

    def _close(self, jobs: Sequence[VectorJob]) -> bool:
        n_free = self._engine.n_pages_free
        for job in jobs:
            job.close()
        return self._engine.n_pages_free > n_free

    def step(self, job: VectorJob, decoding: Sequence[Part], is_alone: bool) -> None:
        """One step of a job, beside answers of which such parts decode; `is_alone`: nobody else holds pages."""
        if self._is_short and not is_alone:
            return
        n_rows = min(STEP_ROWS, self._budget.vector_rows(decoding, job.n_before))
        n_before, n_evaluated = job.n_before, job.n_evaluated
        with self._changed:
            others = [other for other in self._jobs if other is not job and other.is_under_way]
        started_s = self._clock()
        job.step(n_rows, is_alone and not others)
        n_evaluated = job.n_evaluated - n_evaluated
        if n_evaluated:
            self._budget.observe_vectors([Part(n_before, n_evaluated)], self._clock() - started_s)
        is_short = not n_evaluated and not job.is_done
        self._n_free_too_few = self._engine.n_pages_free if is_short else None
        if is_short:
            self._close(others)
        self._meter.count("prompt_tokens", n_evaluated)
        if job.is_done:
            self._remove(job)

    @property
    def _is_short(self) -> bool:
        return self._n_free_too_few is not None and self._engine.n_pages_free <= self._n_free_too_few

    def _remove(self, job: VectorJob) -> None:
        job.adapters.release()
        with self._changed:
            self._jobs.remove(job)

"""The step loop: the next tokens of each decoding request and as much prefill as fits; it knows nothing of text."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localllm.messages import Levels, Message
from localllm.runner.errors import error_message
from localllm.runner.generation import Generation
from localllm.runner.meter import Meter
from localllm.runner.sequences import SequenceLike
from localllm.runner.speculation import Speculation
from localllm.runner.vectors import STEP_ROWS, VectorJob

# Rows of prefill in a step beside decoding requests, so that their next token does not wait for a long prompt.
PREFILL_BESIDE_DECODE = 64


class EngineLike(Protocol):
    """What the loop needs of an engine."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_batch(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_pages(self) -> int: ...

    @property
    def n_pages_free(self) -> int: ...

    @property
    def n_pages_evicted(self) -> int: ...

    def open_sequence(self, tokens: Sequence[int] = (), key: Hashable = ()) -> SequenceLike: ...

    def step(self, entries: Any) -> Sequence[npt.NDArray[np.float32] | None]: ...


class Batch:
    """Runs generations together, one step at a time, in one thread; `submit` and `cancel` may come from others.

    A request that fails ends alone. A canceled one takes part in no further step. Requests that are not interactive
    run only while none that is runs or waits: then they are paused, and their place in the KV cache may be taken.
    """

    def __init__(self, engine: EngineLike, n_parallel: int, send: Callable[[Message], None]) -> None:
        self._engine = engine
        self._n_parallel = n_parallel
        self._send = send
        self._meter = Meter(send)
        self._speculation = Speculation()
        self._n_evicted = 0
        self._active: list[Generation] = []
        self._waiting: deque[Generation] = deque()
        self._jobs: deque[VectorJob] = deque()
        self._canceled: set[str] = set()
        self._changed = threading.Condition()
        self._is_closed = False

    def submit(self, generation: Generation) -> None:
        with self._changed:
            self._waiting.append(generation)
            self._changed.notify()

    def submit_job(self, job: VectorJob) -> None:
        """Take on a job of vectors, which has a step of its own after each of the others."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """End a request without another message; one that is not here is none of our business."""
        with self._changed:
            canceled = [g for g in self._waiting if g.id == request_id]
            self._waiting = deque(g for g in self._waiting if g.id != request_id)
            if request_id in [*(g.id for g in self._active), *(job.id for job in self._jobs)]:
                self._canceled.add(request_id)
        for generation in canceled:
            generation.adapters.release()

    def close(self) -> None:
        """Let `run` return after its step."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def run(self) -> None:
        """Step for as long as there is work, else wait for some."""
        while self._wait_for_work():
            self.step()
            self.report()

    def report(self) -> None:
        """Send figures, where it is time to."""
        with self._changed:
            n_jobs = len(self._jobs)
            n_running, n_waiting = len(self._active) + min(n_jobs, 1), len(self._waiting) + max(n_jobs - 1, 0)
        if not self._meter.is_due(n_running > 0):
            return
        engine = self._engine
        n_evicted, self._n_evicted = self._n_evicted, engine.n_pages_evicted
        self._meter.count("kv_cache_page_evictions", self._n_evicted - n_evicted)
        n_used = engine.n_pages - engine.n_pages_free
        self._meter.report(Levels(n_running, n_waiting, engine.n_pages, n_used))

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._active or self._waiting or self._jobs)
            return not self._is_closed

    def step(self) -> None:
        """Admit, plan, evaluate, take the results; does nothing where there is nothing to do."""
        self._remove_canceled()
        self._give_way_to_interactive()
        self._admit()
        for generation in self._active:
            self._make_room(generation)
        self._remove_done()
        self._speculation.draft([g for g in self._active if g.is_decoding], self._engine.n_batch)
        planned = self._plan()
        if planned:
            self._evaluate(planned)
        self._remove_done()
        self._advance_job()

    def _advance_job(self) -> None:
        """One step of the first job of vectors that somebody waits for, or else of the first."""
        with self._changed:
            job = next((job for job in self._jobs if job.is_interactive), self._jobs[0] if self._jobs else None)
            is_alone = not self._active and not self._waiting
        if job is None or not (job.is_interactive or is_alone):
            return
        is_beside_decode = any(g.is_decoding for g in self._active)
        n_rows = PREFILL_BESIDE_DECODE if is_beside_decode else min(STEP_ROWS, self._engine.n_batch)
        n_evaluated = job.n_evaluated
        job.step(n_rows, is_alone)
        self._meter.count("prompt_tokens", job.n_evaluated - n_evaluated)
        if job.is_done:
            job.adapters.release()
            with self._changed:
                self._jobs.remove(job)

    def _make_room(self, generation: Generation) -> None:
        n_shifts = generation.n_shifts
        generation.make_room()
        self._meter.count("context_shifts", generation.n_shifts - n_shifts)

    def _remove_canceled(self) -> None:
        with self._changed:
            canceled, self._canceled = self._canceled, set()
            jobs = [job for job in self._jobs if job.id in canceled]
            for job in jobs:
                self._jobs.remove(job)
        for job in jobs:
            job.close()
            job.adapters.release()
        for generation in self._active:
            if generation.id in canceled:
                generation.is_done = True
        self._remove_done()

    def _give_way_to_interactive(self) -> None:
        with self._changed:
            is_wanted = any(g.is_interactive for g in (*self._active, *self._waiting))
        paused = [g for g in self._active if is_wanted and not g.is_interactive]
        for generation in paused:
            self._make_room(generation)  # a full sequence could not be evaluated again as it is
        self._remove_done()
        for generation in reversed([g for g in paused if not g.is_done]):
            generation.pause().close()
            with self._changed:
                self._active.remove(generation)
                self._waiting.appendleft(generation)

    def _admit(self) -> None:
        while (generation := self._next()) is not None:
            try:
                seq = self._engine.open_sequence(generation.pending, generation.adapters.key)
                self._meter.admitted(generation, len(seq))
                generation.start(seq)
            except Exception as error:
                self._fail(generation, error)

    def _next(self) -> Generation | None:
        """The request to admit, which is active from now on: an interactive one, or, where there is none, another."""
        with self._changed:
            if len(self._active) >= self._n_parallel:
                return None
            is_wanted = any(g.is_interactive for g in (*self._active, *self._waiting))
            generation = next((g for g in self._waiting if g.is_interactive or not is_wanted), None)
            if generation is not None:
                self._waiting.remove(generation)
                self._active.append(generation)
            return generation

    def _plan(self) -> list[tuple[Generation, int]]:
        """Who takes part in the next step, with how many of its pending tokens: decoding requests first."""
        decoding = [g for g in self._active if g.is_decoding]
        others = [g for g in self._active if not g.is_decoding]
        planned: list[tuple[Generation, int]] = []
        budget = self._engine.n_batch
        for group in (decoding, others):
            for generation in group:
                n = min(generation.n_ready, budget)
                if n > 0:
                    planned.append((generation, n))
                    budget -= n
            budget = min(budget, PREFILL_BESIDE_DECODE) if planned else budget
        return planned

    def _evaluate(self, planned: list[tuple[Generation, int]]) -> None:
        """One step for all; if it fails, one for each, so that only the request at fault ends."""
        try:
            with self._speculation.timing(planned):
                results = self._engine.step([g.entry(n) for g, n in planned])
        except Exception as error:
            if len(planned) == 1:
                self._fail(planned[0][0], error)
                return
            for part in planned:
                self._evaluate([part])
            return
        for (generation, n), logits in zip(planned, results, strict=True):
            try:
                with self._meter.advancing(generation, n):
                    generation.advance(n, logits)
            except Exception as error:
                self._fail(generation, error)

    def _fail(self, generation: Generation, error: Exception) -> None:
        self._send(error_message(generation.id, error))
        generation.is_done = True

    def _remove_done(self) -> None:
        done = [g for g in self._active if g.is_done]
        with self._changed:
            self._active = [g for g in self._active if not g.is_done]
        for generation in done:
            if generation.seq is not None:
                generation.seq.close()
            generation.adapters.release()

"""The step loop: the next tokens of each decoding request and what prefill there is time for; it knows no text."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localllm.engine import KVCacheFullError, NoSlotError
from localllm.messages import Levels, Message
from localllm.runner.budget import Budget, Grant, Part, Room
from localllm.runner.errors import error_message
from localllm.runner.generation import Generation
from localllm.runner.jobs import Jobs
from localllm.runner.meter import Meter
from localllm.runner.planning import Order, Plan, Share, is_about_to_be_known
from localllm.runner.sequences import SequenceLike
from localllm.runner.speculation import DraftEngine, DraftModel, Speculation
from localllm.runner.vectors import VectorJob

DEFAULT_TARGET_S = 0.1
"""The time between the tokens of an answer that prompts of others may stretch it to."""
SLACK_PAGES = 2
"""Pages that must be left for each request before one more is admitted: they all grow."""


class EngineLike(Protocol):
    """What the loop needs of an engine."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_batch(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_stages(self) -> int: ...

    @property
    def n_pages(self) -> int: ...

    @property
    def n_pages_free(self) -> int: ...

    @property
    def n_pages_idle(self) -> int: ...

    @property
    def n_pages_evicted(self) -> int: ...

    @property
    def n_pages_written(self) -> int: ...

    @property
    def n_tokens_restored(self) -> int: ...

    def n_known(self, tokens: Sequence[int], key: Hashable = ()) -> int: ...

    def prefetch(self, tokens: Sequence[int], key: Hashable = ()) -> object: ...

    def save_prefixes(self, timeout_s: float) -> None: ...

    def open_sequence(self, tokens: Sequence[int] = (), key: Hashable = ()) -> SequenceLike: ...

    def step(self, entries: Any) -> Sequence[npt.NDArray[np.float32] | None]: ...


class Batch:
    """Runs generations together, one step at a time, in one thread; `submit` and `cancel` may come from others.

    A request that fails ends alone. A canceled one takes part in no further step. Requests that are not interactive
    run only while none that is runs or waits: then they are paused, and their place in the KV cache may be taken.

    A request is admitted when there is time for its prompt, not before: so it finds in the KV cache what others have
    evaluated meanwhile. Where a step does not fit the KV cache, the one that arrived last is paused, and goes on when
    there is room again: so the one that arrived first always ends. `target_s` and `clock` are those of a Budget,
    `draft` is a draft model's.
    """

    def __init__(
        self,
        engine: EngineLike,
        n_parallel: int,
        send: Callable[[Message], None],
        target_s: float = DEFAULT_TARGET_S,
        clock: Callable[[], float] = time.perf_counter,
        draft: DraftEngine | None = None,
    ) -> None:
        self._engine = engine
        self._n_parallel = n_parallel
        self._send = send
        self._clock = clock
        self._meter = Meter(send)
        self._speculation = Speculation(DraftModel(draft, engine.n_vocab, clock) if draft else None, clock)
        self._budget = Budget(engine.n_batch, target_s, engine.n_stages)
        self._order = Order(self._budget.prefill_s, clock)
        self._n_evicted = self._n_prefill_rows = 0
        self._n_written = self._n_restored = 0
        self._active: list[Generation] = []
        self._waiting: deque[Generation] = deque()
        self._canceled: set[str] = set()
        self._changed = threading.Condition()
        self._jobs = Jobs(engine, self._budget, self._meter, self._changed, clock)
        self._last_prompts: list[Generation] = []
        self._refused: tuple[Generation, int, int] | None = None
        self._is_closed = False

    def submit(self, generation: Generation) -> None:
        with self._changed:
            self._order.arrive(generation)
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
            self._forget_waiting({request_id})
            if any(g.id == request_id for g in self._active) or self._jobs.has(request_id):
                self._canceled.add(request_id)

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
        n_written, self._n_written = self._n_written, engine.n_pages_written
        self._meter.count("kv_disk_page_writes", self._n_written - n_written)
        n_restored, self._n_restored = self._n_restored, engine.n_tokens_restored
        self._meter.count("prompt_tokens_restored", self._n_restored - n_restored)
        n_used = engine.n_pages - engine.n_pages_free
        n_idle, n_budget = engine.n_pages_idle, self._n_prefill_rows
        self._meter.report(Levels(n_running, n_waiting, engine.n_pages, n_used, n_idle, n_budget))

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._active or self._waiting or self._jobs)
            return not self._is_closed

    def step(self) -> None:
        """Admit, plan, evaluate, take the results; does nothing where there is nothing to do."""
        self._remove_canceled()
        self._give_way_to_interactive()
        for generation in self._active:
            self._make_room(generation)
        self._remove_done()
        self._speculation.draft([g for g in self._active if g.is_decoding], self._engine.n_batch)
        plan = Plan(self._decoding())
        job = self._jobs.next(is_nobody_else=not self._active and not self._waiting)
        if job is None or not plan.decoding or not self._jobs.has_turn():
            plan.prompts = self._prompts([share.part for share in plan.decoding])
        if plan.shares:
            self._evaluate(plan)
        self._remove_done()
        if job is not None and not (plan.decoding and plan.prompts):
            self._jobs.step(job, [share.part for share in self._decoding()], is_alone=not self._active)

    def _make_room(self, generation: Generation) -> None:
        n_shifts = generation.n_shifts
        generation.make_room()
        self._meter.count("context_shifts", generation.n_shifts - n_shifts)

    def _remove_canceled(self) -> None:
        with self._changed:
            canceled, self._canceled = self._canceled, set()
            self._forget_waiting(canceled)  # who was running, and has been paused since
        if not canceled:
            return
        self._jobs.cancel(canceled)
        for generation in self._active:
            if generation.id in canceled:
                generation.is_done = True
        self._remove_done()

    def _forget_waiting(self, request_ids: set[str]) -> None:
        """Release those that wait, of these; the lock is held."""
        for generation in [g for g in self._waiting if g.id in request_ids]:
            self._waiting.remove(generation)
            generation.adapters.release()

    def _give_way_to_interactive(self) -> None:
        with self._changed:
            is_wanted = any(g.is_interactive for g in (*self._active, *self._waiting))
        paused = [g for g in self._active if is_wanted and not g.is_interactive]
        for generation in paused:
            self._make_room(generation)  # a full sequence could not be evaluated again as it is
        self._remove_done()
        for generation in paused:
            if not generation.is_done:
                self._pause(generation)

    def _pause(self, generation: Generation) -> None:
        """Let it wait, before all that have not begun; its pages are for whoever needs them."""
        generation.pause().close()
        with self._changed:
            self._active.remove(generation)
            self._waiting.append(generation)

    def _decoding(self) -> list[Share]:
        """Whose answers go on, with the tokens that are next."""
        shares: list[Share] = []
        n_left = self._engine.n_batch
        for generation in self._active:
            if generation.is_decoding and (n := min(generation.n_ready, n_left)) > 0:
                shares.append(Share(generation, n))
                n_left -= n
        return shares

    def _prompts(self, decoding: list[Part]) -> list[Share]:
        """Whose prompts are evaluated beside such rows, the most urgent ones first; who waits is admitted for that."""
        with self._changed:
            is_wanted = any(g.is_interactive for g in (*self._active, *self._waiting))
            waiting = [g for g in self._waiting if g.is_interactive or not is_wanted]
        begun = [g for g in self._active if not g.is_decoding]
        n_prompts = len(begun) + min(len(waiting), self._n_parallel - len(self._active))
        if not n_prompts:
            return []
        room = self._budget.room(decoding, n_prompts)
        shares: list[Share] = []
        is_open = not self._jobs.waits_for_room
        for generation in self._in_order(begun, waiting):
            if not room.fits(self._order.n_evaluated(generation)):
                break
            if generation.seq is None:
                if not is_open or is_about_to_be_known(generation, shares):
                    continue
                is_open = self._admit(generation)
            elif generation.seq.n_chunk and room.is_staged:
                continue
            elif generation not in self._last_prompts:
                self._look_again(generation)
            if generation.seq is None or generation.is_done:
                continue
            grant = self._grant(generation.seq, generation.n_ready, room)
            if grant.n:
                shares.append(Share(generation, *grant))
        self._last_prompts = [share.generation for share in shares]
        return sorted(shares, key=lambda share: share.is_staged)

    def _grant(self, seq: SequenceLike, n_ready: int, room: Room) -> Grant:
        """What a prompt gets of a step: tokens that are on their way through the model go on, others begin."""
        if seq.n_chunk > room.n_rows:
            seq.truncate(len(seq))  # so many are decoding by now that these might wait for long
        if seq.n_chunk:
            return room.go_on(len(seq), seq.n_chunk, seq.n_stages_done)
        return room.take(len(seq), n_ready)

    def _in_order(self, begun: list[Generation], waiting: list[Generation]) -> list[Generation]:
        if len(begun) + len(waiting) < 2:
            return begun + waiting
        for generation in waiting:
            if not self._order.was_looked_up(generation):
                self._order.note_known(generation, self._engine.n_known(generation.pending, generation.adapters.key))
        return self._order.sorted(begun + waiting)

    def _look_again(self, generation: Generation) -> None:
        """Take over what others have evaluated of a prompt while they went before it."""
        assert generation.seq is not None
        tokens, key = [*generation.seq.tokens, *generation.pending], generation.adapters.key
        if self._engine.n_known(tokens, key) <= len(generation.seq) + generation.seq.n_chunk:
            return
        try:
            seq = self._engine.open_sequence(tokens, key)
        except NoSlotError:
            return
        if len(seq) > len(generation.seq):
            generation.pause().close()
            generation.start(seq)
        else:  # there was no room for what was read from disk
            seq.close()

    def _admit(self, generation: Generation) -> bool:
        """Let a request take part from now on; False where it, and all after it, must wait."""
        if len(self._active) >= self._n_parallel or self._is_refused(generation):
            return False
        try:
            seq = self._engine.open_sequence(generation.pending, generation.adapters.key)
        except NoSlotError:  # jobs have them all
            return False
        if not self._has_room(generation, seq) and not (
            self._jobs.give_way_to_interactive() and self._has_room(generation, seq)
        ):
            seq.close()
            self._refused = generation, self._engine.n_pages_free, len(self._active)
            return False
        with self._changed:
            if generation not in self._waiting:  # canceled meanwhile
                seq.close()
                return True
            self._waiting.remove(generation)
            self._active.append(generation)
        self._meter.admitted(generation, len(seq))
        try:
            generation.start(seq)
        except Exception as error:
            self._fail(generation, error)
        return True

    def _is_refused(self, generation: Generation) -> bool:
        """Whether there was no room for it, and there is no more now."""
        if self._refused is None or self._refused[0] is not generation:
            return False
        _, n_free, n_active = self._refused
        return self._engine.n_pages_free <= n_free and len(self._active) >= max(n_active, 1)

    def _has_room(self, generation: Generation, seq: SequenceLike) -> bool:
        """Whether the KV cache holds a request's tokens beside what is promised to others, and what they grow by."""
        if not self._active:
            return True  # jobs give way
        n_missing = seq.n_pages_missing(len(generation.pending) - len(seq))
        for other in self._active:
            if other.seq is not None:
                n_missing += other.seq.n_pages_missing(other.n_ready)
        return n_missing + SLACK_PAGES * (len(self._active) + 1) <= self._engine.n_pages_free

    def _evaluate(self, plan: Plan) -> None:
        """One step for all; if it fails, one for each, so that only the request at fault ends."""
        started_s = self._clock()
        decoding, prompts = [s.part for s in plan.decoding], [s.part for s in plan.prompts]
        try:
            with self._speculation.timing([(share.generation, share.n) for share in plan.shares]):
                results = self._engine.step([share.generation.entry(share.n, share.n_stages) for share in plan.shares])
        except KVCacheFullError as error:
            self._make_way(plan, error)
            return
        except Exception as error:
            if len(plan.shares) == 1:
                self._fail(plan.shares[0].generation, error)
                return
            for share in plan.shares:
                if (seq := share.generation.seq) is not None:
                    if seq.n_chunk:
                        seq.truncate(len(seq))
                    self._evaluate(Plan(prompts=[Share(share.generation, share.n)]))
            return
        for (generation, n, *_), logits in zip(plan.shares, results, strict=True):
            if generation.seq is not None and generation.seq.n_chunk:
                continue  # its tokens are on their way
            try:
                with self._meter.advancing(generation, n):
                    generation.advance(n, logits)
            except Exception as error:
                self._fail(generation, error)
        seconds = self._clock() - started_s
        self._budget.observe(decoding, prompts, seconds)
        self._meter.stepped(seconds)
        if decoding and prompts:
            self._n_prefill_rows = round(sum(part.n * part.share for part in prompts))

    def _make_way(self, plan: Plan, error: KVCacheFullError) -> None:
        """Evaluate what did not fit without guesses, or once jobs, or else the youngest request, gave pages back."""
        running = [g for g in self._active if not g.is_done]
        if any(g.n_draft for g in running):
            for generation in running:
                generation.drop_guesses()
            self._evaluate(Plan([Share(g, min(n, len(g.pending))) for g, n, *_ in plan.decoding], plan.prompts))
        elif self._jobs.give_way():
            self._evaluate(plan)
        elif len(running) > 1:
            youngest = self._order.youngest(running)
            self._pause(youngest)
            self._meter.count("preemptions")
            if (rest := plan.without(youngest)).shares:
                self._evaluate(rest)
        else:
            self._fail(plan.shares[0].generation, error)

    def _fail(self, generation: Generation, error: Exception) -> None:
        self._send(error_message(generation.id, error))
        generation.is_done = True

    def _remove_done(self) -> None:
        done = [g for g in self._active if g.is_done]
        if not done:
            return
        with self._changed:
            self._active = [g for g in self._active if not g.is_done]
        for generation in done:
            if generation.seq is not None:
                generation.seq.close()
            generation.adapters.release()

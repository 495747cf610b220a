"""Counts what the steps do, and tells the daemon now and then; it knows nothing of how a step is planned.

Only the thread of the steps uses it.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

from localllm.distribution import Distribution
from localllm.messages import Counts, Figures, Levels, Message
from localllm.runner.generation import Generation

REPORT_INTERVAL_S = 1.0


class Meter:
    """Counts by the names of `Counts`, and the times between tokens; `clock` gives seconds."""

    def __init__(self, send: Callable[[Message], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._token_gaps = Distribution()
        self._taken_s: weakref.WeakKeyDictionary[Generation, float] = weakref.WeakKeyDictionary()
        self._levels = Levels()
        self._reported_s = clock()

    def count(self, name: str, n: int = 1) -> None:
        """Add to one of the counts."""
        self._counts[name] += n

    def admitted(self, generation: Generation, n_cached: int) -> None:
        """A request is about to start, or to go on after a pause, with so many of its tokens in the KV cache."""
        self._taken_s.pop(generation, None)  # the time of a pause is none between tokens
        if not generation.has_started:
            self._counts["prompt_cache_lookups"] += 1
            self._counts["prompt_cache_hits"] += n_cached > 0
            self._counts["prompt_tokens_cached"] += n_cached
            self._counts["constrained_answers"] += generation.is_constrained

    @contextlib.contextmanager
    def advancing(self, generation: Generation, n_evaluated: int) -> Iterator[None]:
        """Around what a request makes of a step in which so many of its pending tokens were evaluated.

        Tokens that came out of one step have no time between them.
        """
        if not generation.is_decoding:
            self._counts["prompt_tokens"] += n_evaluated
        n_generated, n_forced = generation.n_generated, generation.n_forced
        n_drafts, n_drafted, n_accepted = generation.n_drafts, generation.n_drafted, generation.n_accepted
        try:
            yield
        finally:
            self._counts["generated_tokens"] += generation.n_generated - n_generated
            self._counts["forced_tokens"] += generation.n_forced - n_forced
            self._counts["drafts"] += generation.n_drafts - n_drafts
            self._counts["draft_tokens"] += generation.n_drafted - n_drafted
            self._counts["draft_tokens_accepted"] += generation.n_accepted - n_accepted
            if generation.n_generated > n_generated:
                now_s = self._clock()
                if generation in self._taken_s:
                    self._token_gaps.observe(now_s - self._taken_s[generation])
                self._taken_s[generation] = now_s

    def stepped(self, seconds: float) -> None:
        """A step was run, which took so long."""
        self._counts["steps"] += 1
        self._counts["step_ns"] += round(seconds * 1e9)

    def is_due(self, is_busy: bool) -> bool:
        """Whether it is time to report: a second after the last time, or where no request is left."""
        return not is_busy or self._clock() - self._reported_s >= REPORT_INTERVAL_S

    def report(self, levels: Levels) -> None:
        """Send what changed since the last time, if anything did."""
        counts = +self._counts
        if not counts and levels == self._levels:
            return
        gaps = self._token_gaps
        self._send(Figures(Counts(**counts), levels, gaps.counts, gaps.total_s))
        self._counts, self._token_gaps = Counter(), Distribution()
        self._levels, self._reported_s = levels, self._clock()

"""Gives the requests that decode drafts of what follows, where that pays; it knows nothing of how drafts are judged."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

from localllm.runner.generation import Generation
from localllm.runner.speculation.costs import StepCosts
from localllm.runner.speculation.draft_model import DraftModel, Guess
from localllm.runner.speculation.lengths import best_lengths
from localllm.runner.speculation.lookup import Lookup
from localllm.runner.speculation.worth import Worth

# Rows of drafts in a step: from there on another one costs what it brings, and its logits take memory.
MAX_DRAFT_ROWS = 32
# Where several decode, nobody's next token waits for more than so many times as long for the drafts of others.
MAX_STRETCH = 2.5

logger = logging.getLogger(__name__)


class Speculation:
    """The drafts of a model's requests, from their own tokens and by a draft model, if there is one.

    A draft model that fails is asked no more. Only the thread of the steps uses it; `clock` gives seconds.
    """

    def __init__(self, draft_model: DraftModel | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._costs = StepCosts()
        self._lookups: weakref.WeakKeyDictionary[Generation, Lookup] = weakref.WeakKeyDictionary()
        self._draft_model = draft_model
        self._worth = Worth(draft_model, self._costs) if draft_model else None

    def draft(self, decoding: Sequence[Generation], n_rows: int) -> None:
        """Before a step: let the requests in it that decode guess, so that it has at most `n_rows` rows of theirs."""
        for generation in decoding:
            generation.drop_guesses()
        guesses = [self._looked_up(generation) for generation in decoding]
        if self._draft_model and self._worth:
            try:
                self._ask_draft_model(self._draft_model, self._worth, decoding, guesses)
            except Exception:
                logger.error("the draft model failed, and is asked no more", exc_info=True)
                self._draft_model = None
        if not any(tokens for tokens, _ in guesses):
            return
        n_certain = sum(len(generation.pending) for generation in decoding)
        n_most = max(0, min(n_rows - n_certain, MAX_DRAFT_ROWS))
        while len(decoding) > 1 and n_most and self._stretch(n_certain, n_most) > MAX_STRETCH:
            n_most -= 1
        lengths = best_lengths([chances for _, chances in guesses], self._costs.of, n_certain, n_most)
        for generation, (tokens, _), n in zip(decoding, guesses, lengths, strict=True):
            generation.guess(tokens[:n])

    def _stretch(self, n_certain: int, n_drafted: int) -> float:
        return self._costs.of(n_certain + n_drafted) / self._costs.of(n_certain)

    def _looked_up(self, generation: Generation) -> Guess:
        """The longest draft that could be evaluated, and the chances of its beginnings."""
        if not generation.n_draft_at_most:
            return [], []
        lookup = self._lookups.get(generation)
        if lookup is None:
            lookup = self._lookups[generation] = Lookup(generation.prompt.tokens)
        for token in generation.generated[len(lookup) - len(generation.prompt.tokens) :]:
            lookup.add(token)
        return lookup.guess(generation.n_draft_at_most)

    def _ask_draft_model(
        self, model: DraftModel, worth: Worth, decoding: Sequence[Generation], guesses: list[Guess]
    ) -> None:
        """Put what the draft model foretells in place of guesses that promise less."""
        model.keep(decoding)
        asking = [g for g, (_, chances) in zip(decoding, guesses, strict=True) if worth.asking(g, sum(chances))]
        if not asking or not (n := worth.n_tokens(len(asking))):
            return
        foretold = model.guess(asking, n)
        for i, generation in enumerate(decoding):
            if generation in foretold and sum(foretold[generation][1]) > sum(guesses[i][1]):
                guesses[i] = foretold[generation]

    @contextlib.contextmanager
    def timing(self, planned: Sequence[tuple[Generation, int]]) -> Iterator[None]:
        """Around the evaluation of so many rows of each request: learn what rows cost where all decode."""
        start_s = self._clock()
        yield
        if all(generation.is_decoding for generation, _ in planned):
            self._costs.note(sum(n for _, n in planned), self._clock() - start_s)

"""Foretells tokens by a small model of the same vocabulary, a few for all requests together; it judges no drafts.

What it holds of a request follows the request: tokens that did not come are forgotten, those that it has not seen are
evaluated when it is asked again, a long prompt in parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localllm.engine import Entry
from localllm.engine.errors import KVCacheFullError, NoSlotError
from localllm.engine.prefix_tree import common_length
from localllm.engine.sequence import Logits
from localllm.runner.generation import Generation
from localllm.runner.sequences import SequenceLike
from localllm.runner.speculation.confidence import MIN_CHANCE, Confidence
from localllm.runner.speculation.costs import StepCosts

# Rows of a step by which the draft model catches up with requests.
CATCH_UP_ROWS = 128
# The draft model's own probabilities of its tokens from which on chances are counted apart, and what they are at first.
PROBABILITIES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)
SURENESS_PRIOR = (0.15, 0.3, 0.45, 0.6, 0.75, 0.85, 0.9, 0.95)
OVERALL_PRIOR = (0.6,)

Guess = tuple[list[int], list[float]]


class DraftEngine(Protocol):
    """What is needed of the small model's engine."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    def open_sequence(self, tokens: Sequence[int] = (), key: Hashable = ()) -> SequenceLike: ...

    def step(self, entries: Any) -> Sequence[npt.NDArray[np.float32] | None]: ...


@dataclass
class _Line:
    """What the draft model holds of a request: the first `n_right` tokens are the request's. `drafted` is what it
    foretold last, with the classes of its sureness, when the answer had `n_generated` tokens."""

    seq: SequenceLike
    n_shifts: int
    n_right: int
    confidence: Confidence
    drafted: list[int] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    n_generated: int = 0


class DraftModel:
    """`costs` are those of its own steps. Tokens from `n_vocab` on are none of the requests' vocabulary."""

    def __init__(self, engine: DraftEngine, n_vocab: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.costs = StepCosts()
        self._engine = engine
        self._n_vocab = min(n_vocab, engine.n_vocab)
        self._clock = clock
        self._lines: dict[Generation, _Line] = {}
        self._overall = Confidence(OVERALL_PRIOR)

    @property
    def acceptance(self) -> float:
        """The chance that a token comes as foretold, over all requests."""
        return self._overall.chance(0)

    def keep(self, generations: Sequence[Generation]) -> None:
        """Learn what became of what was foretold for these, and give back what is held of all others."""
        for generation in [g for g in self._lines if g not in generations]:
            self._lines.pop(generation).seq.close()
        for generation in generations:
            if line := self._lines.get(generation):
                self._settle(line, generation)

    def _settle(self, line: _Line, generation: Generation) -> None:
        came = generation.generated[line.n_generated :]
        for token, i, foretold in zip(came, line.classes, line.drafted, strict=False):
            line.confidence.note(i, token == foretold)
            self._overall.note(0, token == foretold)
            if token != foretold:
                break
        line.drafted, line.classes = [], []

    def n_missing(self, generation: Generation) -> int:
        """How many of a request's tokens would have to be evaluated before it can foretell the next one."""
        line = self._lines.get(generation)
        return len(generation.prompt.tokens) + len(generation.generated) - (line.n_right if line else 0)

    def guess(self, generations: Sequence[Generation], n: int) -> dict[Generation, Guess]:
        """The next tokens of requests, at most n for each, and the chances that the first, the first two, … come.

        None for those that it has not caught up with; a step of at most CATCH_UP_ROWS rows brings it nearer.
        """
        try:
            behind = {generation: rest for generation in generations if (rest := self._rest(generation))}
            return self._foretell(self._caught_up(behind), n)
        except KVCacheFullError:
            self.keep([])
            return {}

    def _rest(self, generation: Generation) -> list[int]:
        """The tokens that are to be evaluated, the last one of all among them; none where it cannot be followed."""
        assert generation.seq is not None
        line = self._lines.get(generation)
        tokens = [*generation.prompt.tokens, *generation.generated]
        if generation.n_shifts:
            tokens = [*generation.seq.tokens, *generation.pending]
        if len(tokens) + generation.n_draft_at_most > self._engine.n_ctx:
            return []
        if line is None:
            try:
                seq = self._engine.open_sequence(tokens)
            except NoSlotError:
                return []
            line = self._lines[generation] = _Line(seq, generation.n_shifts, len(seq), Confidence(SURENESS_PRIOR))
        elif line.n_shifts != generation.n_shifts:
            line.n_shifts, line.n_right = generation.n_shifts, 0
        held = line.seq.tokens[line.n_right :]
        line.n_right += common_length(held, tokens[line.n_right : line.n_right + len(held)])
        line.n_right = min(line.n_right, len(tokens) - 1)
        line.seq.truncate(line.n_right)
        line.n_generated = len(generation.generated)
        rest = tokens[line.n_right :]
        return rest if max(rest) < self._n_vocab else []

    def _caught_up(self, behind: dict[Generation, list[int]]) -> dict[Generation, npt.NDArray[np.float32]]:
        """One step for those that are nearest; gives the logits of those that are caught up with then."""
        entries: dict[Generation, Entry] = {}
        n_left = CATCH_UP_ROWS
        for generation, rest in sorted(behind.items(), key=lambda item: len(item[1])):
            if n_left:
                entries[generation] = self._entry(generation, rest[:n_left], len(rest) <= n_left)
                n_left -= len(entries[generation].tokens)
        rows = self._step(entries)
        return {generation: logits[-1] for generation, logits in rows.items() if logits is not None}

    def _foretell(self, rows: dict[Generation, npt.NDArray[np.float32]], n: int) -> dict[Generation, Guess]:
        guesses: dict[Generation, Guess] = {generation: ([], []) for generation in rows}
        while rows:
            entries: dict[Generation, Entry] = {}
            for generation, logits in rows.items():
                token, probability = _likeliest(logits[: self._n_vocab])
                if self._note(guesses[generation], generation, token, probability, n):
                    entries[generation] = self._entry(generation, [token], True)
            rows = {g: logits[-1] for g, logits in self._step(entries).items() if logits is not None}
        return guesses

    def _note(self, guess: Guess, generation: Generation, token: int, probability: float, n: int) -> bool:
        """Add a token to what is foretold; whether more is wanted."""
        line, (tokens, chances) = self._lines[generation], guess
        i = sum(probability >= least for least in PROBABILITIES) - 1
        line.drafted.append(token)
        line.classes.append(i)
        chance = (chances[-1] if chances else 1.0) * line.confidence.chance(i)
        if chance < MIN_CHANCE:
            return False
        tokens.append(token)
        chances.append(chance)
        return len(tokens) < min(n, generation.n_draft_at_most)

    def _entry(self, generation: Generation, tokens: Sequence[int], is_wanted: bool) -> Entry:
        line = self._lines[generation]
        logits: Logits = "last" if is_wanted else "none"
        return Entry(line.seq, tokens, logits, n_draft=len(line.drafted))  # type: ignore[arg-type]

    def _step(self, entries: dict[Generation, Entry]) -> dict[Generation, npt.NDArray[np.float32] | None]:
        if not entries:
            return {}
        start_s = self._clock()
        rows = self._engine.step(list(entries.values()))
        self.costs.note(sum(len(entry.tokens) for entry in entries.values()), self._clock() - start_s)
        return dict(zip(entries, rows, strict=True))


def _likeliest(logits: npt.NDArray[np.float32]) -> tuple[int, float]:
    """The token with the largest of the logits, float32 [n_vocab], and its probability."""
    token = int(logits.argmax())
    return token, float(1 / np.exp(logits - logits[token]).sum(dtype=np.float64))

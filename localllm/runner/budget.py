"""How many rows of prefill a step has room for, so that running answers go on smoothly; it knows no requests.

Two bounds hold beside decoding. A step should end within a target time; and, since small models decode in a few
milliseconds, it should take no more than STRETCH times as long as without prefill: who reads along notices a rhythm
that breaks. A few rows of a prompt cost much more each than many, and one may take longer than there is: then a chunk
of rows goes through some stages of the model, as a rule its layers, and through the next ones in later steps. Where
more prompts wait than answers run, a step may be longer by as much: what delays a few brings many nearer. Where a step
without prefill is near the target by itself, or above it, prompts get SHARE_AT_LEAST.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import NamedTuple

from localllm.runner.costs import Costs

STRETCH = 1.6
"""A step with prefill of a prompt beside an answer, in units of one without."""
STRETCH_OF_SEVERAL = 1.75
"""The same with more prompts or answers: then requests mostly wait for each other, and steps are longer anyway."""
SHARE_AT_LEAST = 0.5
"""What prefill may add to a step that is too long without it, as a share of that."""
ALONE_S = 0.25
"""A step of prefill alone: who arrives or cancels must not wait for much longer."""
ALONE_STEPS = 8
"""A step of prefill alone may always be as long as so many of decoding: shorter ones would read weights too often."""
ROWS_UNKNOWN = 64
"""Rows of prefill alone as long as nothing was measured."""
CHUNK_ROWS = 16
"""Rows, at least, that go through the stages of a model together where fewer would fit into a step as a whole: more
would cost little less each, and make the steps of models of few layers uneven."""
ROWS_ALONE = 16
"""Rows of prefill alone, at least: fewer would read the weights for next to nothing."""
N_PROBES = 2
"""Steps without prefill, of each kind, that must have been measured before there are some with it."""
PROBE_INTERVAL = 64
"""Steps with prefill between two without: a machine is not equally fast at all times."""


class Part(NamedTuple):
    """`n` rows of one sequence that holds `n_before` tokens, and the share of the model that they go through."""

    n_before: int
    n: int
    share: float = 1.0


class Grant(NamedTuple):
    """So many rows, which may go through so many further stages (None: all), and what share of the model these are."""

    n: int
    n_stages: int | None = None
    share: float = 1.0


NOTHING = Grant(0)


def decode_features(parts: Sequence[Part]) -> tuple[float, float, float]:
    """One step, its rows, the positions that they attend to."""
    return 1.0, float(sum(part.n for part in parts)), float(sum(part.n_before for part in parts))


def prefill_features(parts: Sequence[Part], is_alone: bool) -> tuple[float, float, float, float]:
    """A step of its own, its rows, the positions that are read from memory, and those that further rows attend to."""
    step = float(is_alone) * max((part.share for part in parts), default=1.0)
    n_rows, n_read, n_attended = 0.0, 0.0, 0.0
    for n_before, n, share in parts:
        n_rows += share * n
        n_read += share * n_before
        n_attended += share * (n - 1) * (n_before + n // 2)
    return step, n_rows, n_read, n_attended


class Budget:
    """What steps cost on this model, and what that leaves room for. `target_s` 0: nothing bounds a step."""

    def __init__(self, n_batch: int, target_s: float, n_stages: int = 1) -> None:
        self._n_batch = n_batch
        self._n_stages = n_stages
        self._target_s = target_s
        self._n_since_probe = 0
        self._decode = Costs((1, 4, 2000), (1, 0.4, 0.2), main=0)
        self._prefill = Costs((1, 16, 1000, 16000), (0.3, 1, 0.1, 0.5), main=1)
        self._hidden = Costs((1, 16, 1000, 16000), (0.3, 1, 0.1, 0.5), main=1)

    def prefill_s(self, part: Part) -> float:
        """What evaluating a prompt, or the rest of one, takes by itself."""
        return self._prefill.seconds(prefill_features([part], is_alone=True))

    def _wants_probe(self, features: Sequence[float]) -> bool:
        """Whether it should be measured what a step without prefill takes."""
        return self._decode.n_alike(features) < N_PROBES or self._n_since_probe >= PROBE_INTERVAL

    def observe(self, decoding: Sequence[Part], prefilled: Sequence[Part], seconds: float) -> None:
        """Learn from a step of rows that decode and rows of prompts."""
        base_s = 0.0
        if decoding:
            features = decode_features(decoding)
            if not prefilled:
                self._n_since_probe = 0
                self._decode.observe(features, seconds)
                return
            self._n_since_probe += 1
            base_s = self._decode.seconds(features)
        self._prefill.observe(prefill_features(prefilled, not decoding), seconds - base_s, seconds)

    def observe_vectors(self, parts: Sequence[Part], seconds: float) -> None:
        """Learn from a step for vectors."""
        self._hidden.observe(prefill_features(parts, is_alone=True), seconds)

    def room(self, decoding: Sequence[Part], n_prompts: int = 1) -> Room:
        """What there is room for in a step in which these rows decode, while so many prompts wait for their end."""
        n_rows = self._n_batch - sum(part.n for part in decoding)
        if self._target_s <= 0 or n_rows <= 0:
            return Room(self._prefill, n_rows, inf, n_rows, not decoding, self._n_stages)
        if not decoding:
            return self._room_alone(self._prefill, self._n_stages)
        features = decode_features(decoding)
        if self._wants_probe(features):
            return Room(self._prefill, 0, 0.0, 0, False)
        stretch = STRETCH if len(decoding) == n_prompts == 1 else STRETCH_OF_SEVERAL
        left_s = self._left_s(features, (stretch - 1) * max(1.0, n_prompts / len(decoding)))
        return Room(self._prefill, n_rows, left_s, 1, False, self._n_stages)

    def vector_rows(self, decoding: Sequence[Part], n_before: int) -> int:
        """Rows of the next step for vectors, which goes on after so many tokens of an input."""
        if not decoding or self._target_s <= 0:
            room = self._room_alone(self._hidden)
        else:
            room = Room(self._hidden, self._n_batch, self._left_s(decode_features(decoding), STRETCH - 1), 1, True)
        return room.take(n_before, self._n_batch).n

    def _left_s(self, features: Sequence[float], share: float) -> float:
        """What may be added to a step in which rows decode: that share of it, but for the target."""
        base_s = self._decode.seconds(features)
        return max(min(self._target_s, (1 + share) * base_s) - base_s, SHARE_AT_LEAST * base_s)

    def _room_alone(self, costs: Costs, n_stages: int = 1) -> Room:
        if self._target_s <= 0:
            return Room(costs, self._n_batch, inf, 1, True, n_stages)
        if not costs.is_known:
            return Room(costs, min(ROWS_UNKNOWN, self._n_batch), inf, 1, True, n_stages)
        limit_s = max(ALONE_S, self._target_s, ALONE_STEPS * self._decode.seconds((1.0, 1.0, 0.0)))
        return Room(costs, self._n_batch, limit_s, min(ROWS_ALONE, self._n_batch), True, n_stages)


class Room:
    """Time and rows of one step that prompts may `take`, one after another; the first one gets at least `n_at_least`
    rows, or a stage for a chunk. Only one of them may go through some of the `n_stages` of the model."""

    def __init__(
        self, costs: Costs, n_rows: int, seconds: float, n_at_least: int, is_alone: bool, n_stages: int = 1
    ) -> None:
        self._costs = costs
        self._n_rows = n_rows
        self._seconds = seconds
        self._n_at_least = n_at_least
        self._is_alone = is_alone
        self._n_stages = n_stages
        self._is_staged = False
        self._taken: list[Part] = []

    @property
    def n_rows(self) -> int:
        """Rows that are left."""
        return self._n_rows

    @property
    def is_staged(self) -> bool:
        """Whether a chunk goes through some of the stages already."""
        return self._is_staged

    def fits(self, n_before: int) -> bool:
        """Whether a prompt of which so many tokens are evaluated would get anything."""
        if self._n_rows <= 0:
            return False
        if self._has_claim or self._n_fitting(n_before, 1) > 0:
            return True
        return self._begins_chunks and self._n_stages_fitting(n_before, min(CHUNK_ROWS, self._n_rows), 1) > 0

    def take(self, n_before: int, n_wanted: int) -> Grant:
        """Rows for a prompt of which `n_before` tokens are evaluated and `n_wanted` are left; 0 without room."""
        n_most = min(n_wanted, self._n_rows)
        n, n_chunk = self._n_fitting(n_before, n_most), min(n_most, CHUNK_ROWS)
        if n < n_chunk and self._begins_chunks and (n == 0 or self._n_stages_fitting(n_before, n_chunk, 1)):
            return self.go_on(n_before, self._chunk_rows(n_before, n_most), 0)
        if self._has_claim:
            n = max(n, min(self._n_at_least, n_most))
        return self._give(n_before, Grant(max(n, 0)))

    def go_on(self, n_before: int, n: int, n_done: int) -> Grant:
        """Stages for a chunk of n rows that has gone through `n_done` of them; 0 rows where it must wait."""
        if n > self._n_rows or self._is_staged:
            return NOTHING
        n_left = self._n_stages - n_done
        n_most = max(self._n_stages_fitting(n_before, n, n_left), int(self._has_claim))
        if n_most == 0:
            return NOTHING
        n_stages = ceil(n_left / ceil(n_left / n_most))  # in as few steps, all of them alike
        self._is_staged = n_done > 0 or n_stages < n_left
        return self._give(n_before, Grant(n, n_stages if n_stages < n_left else None, n_stages / self._n_stages))

    def _give(self, n_before: int, grant: Grant) -> Grant:
        if grant.n:
            self._taken.append(Part(n_before, grant.n, grant.share))
            self._n_rows -= grant.n
        return grant

    @property
    def _has_claim(self) -> bool:
        return not self._taken and self._n_at_least > 0

    @property
    def _begins_chunks(self) -> bool:
        """Whether a prompt may go through some stages only. Alone it has the time, and is faster with more rows; and in
        what another has left of a step a chunk would only begin, to have no more than its rest of the next one."""
        return self._n_stages > 1 and not self._taken and not self._is_alone

    def _n_fitting(self, n_before: int, n_most: int) -> int:
        """The most rows that the time is enough for."""
        low, high = 0, max(n_most, 0)
        while low < high:
            middle = (low + high + 1) // 2
            if self._seconds == inf or self._cost_s(Part(n_before, middle)) <= self._seconds:
                low = middle
            else:
                high = middle - 1
        return low

    def _chunk_rows(self, n_before: int, n_most: int) -> int:
        """So many rows that of the steps which they take little is left unused."""

        def rows_a_step(n: int) -> float:
            n_stages = self._n_stages_fitting(n_before, n, self._n_stages)
            return n / ceil(self._n_stages / n_stages) if n_stages else 0

        return max(range(min(CHUNK_ROWS, n_most), min(2 * CHUNK_ROWS, n_most + 1)), key=rows_a_step)

    def _n_stages_fitting(self, n_before: int, n: int, n_most: int) -> int:
        """The most stages that the time is enough for."""
        taken_s = self._cost_s()
        stage_s = (self._cost_s(Part(n_before, n)) - taken_s) / self._n_stages
        if self._seconds == inf or stage_s <= 0:
            return n_most
        return max(0, min(n_most, int((self._seconds - taken_s) / stage_s)))

    def _cost_s(self, *more: Part) -> float:
        return self._costs.seconds(prefill_features([*self._taken, *more], self._is_alone))

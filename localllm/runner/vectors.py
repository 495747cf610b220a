"""Inputs of one request on their way through the model, many in a step; it knows nothing of texts or messages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localllm.engine import Entry, KVCacheFullError, NoSlotError
from localllm.engine.sequence import Logits
from localllm.errors import RunnerError
from localllm.runner.adapters import AdapterSet
from localllm.runner.sequences import SequenceLike

F32 = npt.NDArray[np.float32]

STEP_ROWS = 512
"""Rows of a step, as far as there are no longer inputs: who cancels must not wait for more."""


class VectorEngine(Protocol):
    """What a job needs of an engine."""

    pooling: str
    is_bidirectional: bool

    @property
    def n_batch(self) -> int: ...

    def open_sequence(self, tokens: Sequence[int] = (), key: Hashable = ()) -> SequenceLike: ...

    def step(self, entries: Any) -> Sequence[F32 | None]: ...

    def step_hidden(self, entries: Any) -> Sequence[F32 | None]: ...


class Reading:
    """One input: how much of it has been evaluated, in which sequence, and its rows pooled so far."""

    def __init__(self, tokens: list[int], pooling: str) -> None:
        self.tokens = tokens
        self.seq: SequenceLike | None = None
        self.n_done = 0
        self.row: F32 | None = None
        self._pooling = pooling

    @property
    def n_left(self) -> int:
        return len(self.tokens) - self.n_done

    def wanted(self, n: int) -> Logits:
        """The rows that are wanted of the next n tokens."""
        if self._pooling == "mean" or (self._pooling == "cls" and self.n_done == 0):
            return "all"
        return "last" if n == self.n_left and self._pooling != "cls" else "none"

    def advance(self, n: int, rows: F32 | None) -> None:
        """Take the rows of the next n tokens. A mean is added up row by row, whatever the steps."""
        self.n_done += n
        if rows is None:
            return
        if self._pooling == "mean":
            before = rows[:0] if self.row is None else self.row[None]
            self.row = np.add.reduce(np.concatenate([before, rows]), axis=0)
            if self.n_left == 0:
                self.row = self.row / np.float32(len(self.tokens))
        else:
            self.row = rows[0].copy()

    def reset(self) -> None:
        """Forget what has been evaluated."""
        self.seq, self.n_done, self.row = None, 0, None


class VectorJob:
    """Evaluates inputs and hands their rows, one an input, in order, to `finish`; `fail` gets what goes wrong.

    The rows are what stands for a text, or scores with `is_ranking`. `n_evaluated` counts tokens, those again that were
    evaluated again for want of room. Whoever takes it out of the way releases its
    `adapters`.
    """

    def __init__(
        self,
        request_id: str,
        inputs: Sequence[list[int]],
        engine: VectorEngine,
        finish: Callable[[list[F32]], None],
        fail: Callable[[Exception], None],
        *,
        is_ranking: bool = False,
        is_interactive: bool = True,
        adapters: AdapterSet | None = None,
    ) -> None:
        self.adapters = adapters or AdapterSet()
        self.id = request_id
        self.is_interactive = is_interactive
        self.is_done = False
        self.n_evaluated = 0
        self._engine = engine
        pooling = "last" if engine.is_bidirectional or is_ranking else engine.pooling
        self._readings = [Reading(tokens, pooling) for tokens in inputs]
        self._n_read = 0
        self._run = engine.step if is_ranking else engine.step_hidden
        self._finish, self._fail = finish, fail

    @property
    def n_before(self) -> int:
        """How much of the input that is next was evaluated already."""
        return self._readings[self._n_read].n_done if self._n_read < len(self._readings) else 0

    @property
    def is_under_way(self) -> bool:
        """Whether it has sequences."""
        return self._n_read < len(self._readings) and self._readings[self._n_read].seq is not None

    def step(self, n_rows: int, is_alone: bool) -> None:
        """Evaluate up to n_rows rows; ends the job with the last of them, or where something goes wrong.

        Where there is no room and the model is not `is_alone` with this job, nothing happens.
        """
        try:
            planned = self._plan(n_rows)
            if not planned and is_alone:
                raise RunnerError("no sequence is free")
            if planned and self._evaluate(planned, is_alone) and self._n_read == len(self._readings):
                self._finish([r.row for r in self._readings if r.row is not None])
                self.is_done = True
        except Exception as error:
            self._fail(error)
            self.is_done = True
        if self.is_done:
            self.close()

    def close(self) -> None:
        """Give back the sequences."""
        for reading in self._readings[self._n_read :]:
            if reading.seq is not None:
                reading.seq.close()
                reading.reset()

    def _plan(self, n_rows: int) -> list[tuple[Reading, int]]:
        """Inputs in order, with how many of their tokens. Whole ones where the model needs them whole."""
        planned: list[tuple[Reading, int]] = []
        for reading in self._readings[self._n_read :]:
            n = reading.n_left if self._engine.is_bidirectional else min(reading.n_left, n_rows)
            if n_rows <= 0 or (planned and n > n_rows) or not self._open(reading):
                break
            planned.append((reading, n))
            n_rows -= n
        return planned

    def _open(self, reading: Reading) -> bool:
        """Whether the input has a sequence."""
        if reading.seq is None:
            try:
                reading.seq = self._engine.open_sequence(key=None)  # nobody begins like a text that was read once
            except NoSlotError:
                return False
        return True

    def _evaluate(self, planned: list[tuple[Reading, int]], is_alone: bool) -> bool:
        """One step, with fewer inputs where the cache is full; False if there is no room even for one."""
        while True:
            entries = [
                Entry(r.seq, r.tokens[r.n_done : r.n_done + n], r.wanted(n), self.adapters.entries)  # type: ignore[arg-type]
                for r, n in planned
            ]
            try:
                results = self._run(entries)
                break
            except KVCacheFullError:
                if len(planned) > 1:
                    planned = planned[: len(planned) // 2]
                    continue
                if is_alone:
                    raise
                self.close()
                return False
        for (reading, n), rows in zip(planned, results, strict=True):
            self.n_evaluated += n
            reading.advance(n, rows)
            if reading.n_left == 0:
                assert reading.seq is not None
                reading.seq.close()
                self._n_read += 1
        return True

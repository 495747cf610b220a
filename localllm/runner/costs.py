"""What steps cost, learned from those that were measured; it knows neither requests nor what a step is wanted for."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from operator import mul, truediv

import numpy as np

N_ALIKE = 7
"""Measurements kept of steps that are alike."""
N_KINDS = 48
"""Kinds of steps of which measurements are kept."""
FIT_INTERVAL = 4
"""Measurements between two fits."""
HALF_WEIGHT_AGE = 200
"""Measurements after which an older one counts half."""
N_SWEEPS = 24
RESIDUAL_FLOOR = 0.03
"""Errors below this share of a step are alike."""
ASSUMED_WEIGHT = 0.05
"""What an assumption counts beside a measurement."""


class Costs:
    """Seconds of a step as a sum of features, each times a rate that is at least 0.

    The rates minimise the sum of relative errors, not of their squares: a step that took ten times as long, since
    another program had the processor, counts no more than any other. `sizes` are what features come to in an ordinary
    step, `shares` what each such feature is assumed to cost, in units of the one called `main`, as long as nothing is
    known of it. Steps whose features are alike in their powers of 2 are a kind, of which the latest are kept: so what
    is known of rare steps outlives many of a common kind.
    """

    def __init__(self, sizes: Sequence[float], shares: Sequence[float], main: int) -> None:
        self._sizes = list(sizes)
        self._shares = list(shares)
        self._main = main
        self._scaled = [0.0] * len(sizes)  # seconds of a feature of its ordinary size
        self._rates = [0.0] * len(sizes)
        self._kinds: OrderedDict[tuple[int, ...], deque[tuple[float, ...]]] = OrderedDict()
        self._n_observed = self._n_new = 0

    @property
    def is_known(self) -> bool:
        """Whether anything has been measured."""
        return self._n_observed > 0

    def n_alike(self, features: Sequence[float]) -> int:
        """How many steps of this kind are remembered."""
        return len(self._kinds.get(self._kind(features), ()))

    def observe(self, features: Sequence[float], seconds: float, step_seconds: float | None = None) -> None:
        """Learn that features cost so much in a step that took `step_seconds` (None: `seconds`), which errors are
        measured by."""
        kind = self._kind(features)
        self._n_observed += 1
        self._n_new += 1
        step_s = max(seconds if step_seconds is None else step_seconds, 1e-9)
        self._kinds.setdefault(kind, deque(maxlen=N_ALIKE)).append(
            (*features, max(seconds, 0.0), step_s, self._n_observed)
        )
        self._kinds.move_to_end(kind)
        if len(self._kinds) > N_KINDS:
            self._kinds.popitem(last=False)

    def seconds(self, features: Sequence[float]) -> float:
        """What a step with these features is expected to take; 0 as long as nothing is known."""
        if self._n_new >= min(FIT_INTERVAL, self._n_observed):
            self._fit()
        return sum(map(mul, self._rates, features))

    def _kind(self, features: Sequence[float]) -> tuple[int, ...]:
        """Small ones are not told apart."""
        return tuple(int(8 * f / size).bit_length() for f, size in zip(features, self._sizes, strict=True))

    def _fit(self) -> None:
        """One round of least squares whose weights make it one of least absolute errors."""
        if not self._n_new:
            return
        rows = np.array([row for kind in self._kinds.values() for row in kind])
        features, (seconds, step_s, noted) = rows[:, :-3] / self._sizes, rows[:, -3:].T
        is_first = not any(self._scaled)
        errors = np.abs(seconds - features @ self._scaled) / step_s
        weights = 1 / (step_s**2 * np.maximum(1.0 if is_first else errors, RESIDUAL_FLOOR))
        weights /= 1 + (self._n_observed - noted) / HALF_WEIGHT_AGE
        weighted = features * weights[:, None]
        self._solve((features.T @ weighted).tolist(), (seconds @ weighted).tolist(), float(np.median(weights)))
        self._rates = list(map(truediv, self._scaled, self._sizes))
        self._n_new = 0

    def _solve(self, gram: list[list[float]], moments: list[float], weight: float) -> None:
        """Minimise feature by feature from where the rates are, none below 0; what was not measured goes to its share
        of the main one."""
        rates = self._scaled
        weight *= ASSUMED_WEIGHT
        for _ in range(N_SWEEPS):
            for i, row in enumerate(gram):
                others = sum(map(mul, row, rates)) - row[i] * rates[i]
                pull = 0.0 if i == self._main else weight
                wanted = moments[i] - others + pull * self._shares[i] * rates[self._main]
                rates[i] = max(0.0, wanted / (row[i] + pull)) if row[i] + pull > 0 else 0.0

"""When it pays to ask a draft model, and for how many tokens; it knows nothing of what that foretells."""

from __future__ import annotations

from localllm.runner.generation import Generation
from localllm.runner.speculation.costs import StepCosts
from localllm.runner.speculation.draft_model import CATCH_UP_ROWS, DraftModel
from localllm.runner.speculation.lengths import MIN_GAIN

MAX_TOKENS = 16
# Where it does not pay, it is asked again after so many steps, and after twice as many if it still does not.
FIRST_PAUSE = 64
LAST_PAUSE = 4096
# One trial: so many steps with so many tokens.
TRIAL_STEPS = 8
TRIAL_TOKENS = 3
# A chance of tokens to come that no trial could improve on.
BEST_ACCEPTANCE = 0.97
# An answer is expected to have so many more tokens, or what its limit leaves.
EXPECTED_TOKENS = 256


class Worth:
    """Decides from what steps of both models cost, and how often what the small one foretold has come."""

    def __init__(self, model: DraftModel, costs: StepCosts) -> None:
        self._model = model
        self._costs = costs
        self._n_trials = TRIAL_STEPS
        self._n_waiting, self._pause = 0, FIRST_PAUSE

    def asking(self, generation: Generation, n_expected: float) -> bool:
        """Whether a request of which `n_expected` tokens can be foretold otherwise could gain by the draft model, and
        soon enough for what must be evaluated first."""
        if not generation.n_draft_at_most:
            return False
        if not self._are_known:
            return True
        n, gain = self._best(1, self._model.acceptance)
        if n and n_expected >= self._expected(n, self._model.acceptance):
            return False
        n_missing = self._model.n_missing(generation)
        if n_missing <= CATCH_UP_ROWS:
            return True
        catching_up_s = n_missing * self._model.costs.seconds(CATCH_UP_ROWS) / CATCH_UP_ROWS
        n_coming = min(EXPECTED_TOKENS, generation.n_left)
        return catching_up_s < n_coming * self._costs.seconds(1) * max(0.0, 1 - 1 / gain)

    def n_tokens(self, n_asking: int) -> int:
        """How many tokens to have foretold for each of so many requests, 0 for none."""
        if self._are_known:
            n, _ = self._best(n_asking, self._model.acceptance)
            if n:
                self._n_trials, self._pause = TRIAL_STEPS, FIRST_PAUSE
                return n
            if not self._best(n_asking, BEST_ACCEPTANCE)[0]:
                return self._wait()
        if self._n_trials:
            self._n_trials -= 1
            return TRIAL_TOKENS
        return self._wait()

    @property
    def _are_known(self) -> bool:
        return self._costs.is_known and self._model.costs.is_known

    def _wait(self) -> int:
        self._n_waiting += 1
        if self._n_waiting >= self._pause:
            self._n_waiting, self._n_trials = 0, TRIAL_STEPS
            self._pause = min(2 * self._pause, LAST_PAUSE)
        return 0

    def _best(self, n_asking: int, acceptance: float) -> tuple[int, float]:
        """The number of tokens that brings the most for its time, and how many times the rate without."""
        plain = n_asking / self._costs.seconds(n_asking)
        best, best_gain = 0, MIN_GAIN
        step_s = self._model.costs.seconds(n_asking)
        for n in range(1, MAX_TOKENS + 1):
            seconds = self._costs.seconds(n_asking * (1 + n)) + n * step_s
            gain = n_asking * (1 + self._expected(n, acceptance)) / seconds / plain
            if gain > best_gain:
                best, best_gain = n, gain
        return best, best_gain if best else 1.0

    def _expected(self, n: int, acceptance: float) -> float:
        """Of n tokens those that come."""
        return acceptance * (1 - acceptance**n) / (1 - acceptance) if acceptance < 1 else float(n)

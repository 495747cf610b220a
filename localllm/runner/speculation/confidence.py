"""How often what was foretold has come, by how sure that was; it knows neither tokens nor why it was sure."""

from __future__ import annotations

from collections.abc import Sequence

# What is believed beforehand counts like so many observations; of later ones the last so many count.
N_PRIOR = 4.0
N_REMEMBERED = 48.0
# A row costs more than a token that is less likely than this is worth.
MIN_CHANCE = 0.2


class Confidence:
    """Chances of classes that are told apart; `prior` are those before anything was seen."""

    def __init__(self, prior: Sequence[float]) -> None:
        self._n_seen = [N_PRIOR] * len(prior)
        self._n_right = [N_PRIOR * chance for chance in prior]

    def note(self, i: int, is_right: bool) -> None:
        """Something of class i was foretold, and came or did not."""
        fade = min(1.0, N_REMEMBERED / (self._n_seen[i] + 1))
        self._n_seen[i] = (self._n_seen[i] + 1) * fade
        self._n_right[i] = (self._n_right[i] + is_right) * fade

    def chance(self, i: int) -> float:
        """That what is foretold with this class comes."""
        return self._n_right[i] / self._n_seen[i]

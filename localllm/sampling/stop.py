"""Stop strings found in streamed text; it knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """Passes text on, but never any character of a stop string.

    The stop string that is complete first wins, and of those complete at the same character the longest:
    so the outcome depends on the text alone, not on how it was cut into pieces. Empty stop strings are ignored.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = [stop for stop in dict.fromkeys(stops) if stop]
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> tuple[str, bool]:
        """Take more text; give what can be shown by now, and whether a stop string was met (feed no more then)."""
        text = self._held + text
        matches = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            _, start, self.matched = min(matches)
            self._held = ""
            return text[:start], True
        n_shown = len(text) - self._n_undecided(text)
        self._held = text[n_shown:]
        return text[:n_shown], False

    def flush(self) -> str:
        """The text ended: what was held back is no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _n_undecided(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string may begin."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper start of `stop` that `text` ends with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)

"""Foretells a text's next tokens from its own earlier ones (prompt-lookup decoding, Saxena 2023); it knows no models.

Two places are followed. One is found by the text itself: what came after the last occurrence of what was said last.
The other keeps to the text that is being copied with changes: after a token that departs from it, it waits for the copy
to return to it within WINDOW tokens. Which of them is believed, and how far, is learned from what they foretold before.
"""

from __future__ import annotations

from collections.abc import Iterable

from localllm.runner.speculation.confidence import MIN_CHANCE, Confidence
from localllm.runner.speculation.ngrams import MAX_MATCH, Ngrams, continued

# After an agreement of so many tokens a departure is a change in a copy.
MIN_COPY = 6
# A copy returns to its original at most so many tokens behind the place where it departed, or is lost after as many.
WINDOW = 16
# Lengths of agreement from which on chances are counted apart. What is foretold is counted whether it is evaluated as a
# draft or not, so knowing costs nothing.
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# How often tokens came as foretold, by LENGTHS: code that is copied with changes, and prose, lie far to either side.
FOUND_PRIOR = (0.1, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.8, 0.85, 0.9)
COPY_PRIOR = (0.25, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.9)
_CLASSES = [sum(first <= length for first in LENGTHS) - 1 for length in range(LENGTHS[-1] + 1)]


class Lookup:
    """One text. A place is the index of the token that is foretold, 0 if there is none."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._ngrams = Ngrams(tokens)
        self._found, self._n_found = self._ngrams.last()
        self._found_confidence = Confidence(FOUND_PRIOR)
        self._copied = self._n_copied = 0
        self._left = self._n_since = 0  # where the copy departed, and how long ago
        self._copy_confidence = Confidence(COPY_PRIOR)

    def __len__(self) -> int:
        return len(self._ngrams.tokens)

    def add(self, token: int) -> None:
        """The text goes on with a token."""
        self._follow_copy(token)
        self._follow_found(token)

    def guess(self, n: int) -> tuple[list[int], list[float]]:
        """The next tokens, at most n, and the chances that the first, the first two, … of them come."""
        place, length, confidence = self._found, self._n_found, self._found_confidence
        if self._copied and (
            not place or self._copy_confidence.chance(_class(self._n_copied)) >= confidence.chance(_class(length))
        ):
            place, length, confidence = self._copied, self._n_copied, self._copy_confidence
        if not place:
            return [], []
        chances = _chances(confidence, length, n)
        return continued(self._ngrams.tokens, place, len(chances)), chances

    def _follow_found(self, token: int) -> None:
        tokens = self._ngrams.tokens
        if self._found:
            is_right = tokens[self._found] == token
            self._found_confidence.note(_class(self._n_found), is_right)
            if is_right:
                self._found, self._n_found = self._found + 1, self._n_found + 1
            else:
                if self._n_found >= MIN_COPY and self._n_found > self._n_copied:
                    self._depart(self._found, token)
                self._found = 0
        self._ngrams.add(token)
        if not self._found or self._n_found < MAX_MATCH:
            place, n = self._ngrams.last()
            if n > self._n_found or not self._found:
                self._found, self._n_found = place, n

    def _follow_copy(self, token: int) -> None:
        if not self._copied:
            return
        is_right = self._ngrams.tokens[self._copied] == token
        self._copy_confidence.note(_class(self._n_copied), is_right)
        if is_right:
            self._copied, self._n_copied = self._copied + 1, self._n_copied + 1
            return
        if self._n_copied >= MIN_COPY:
            self._depart(self._copied, token)
        else:
            self._n_since += 1 + self._n_copied
            self._return_by(token)

    def _depart(self, place: int, token: int) -> None:
        self._left, self._n_since = place, 0
        self._return_by(token)

    def _return_by(self, token: int) -> None:
        """Look for a token in the original, from where the copy departed; if it is not there, one was exchanged."""
        end = min(self._left + WINDOW, len(self._ngrams.tokens))
        try:
            self._copied, self._n_copied = self._ngrams.tokens.index(token, self._left, end) + 1, 1
        except ValueError:
            self._copied, self._n_copied = self._left + 1, 0
        if self._n_since > WINDOW or self._copied >= len(self._ngrams.tokens):
            self._copied = self._n_copied = 0


def _chances(confidence: Confidence, length: int, n: int) -> list[float]:
    """That the first, the first two, … of the next tokens come as foretold: at most n, none below MIN_CHANCE."""
    result: list[float] = []
    product = confidence.chance(_class(length))
    while product >= MIN_CHANCE and len(result) < n:
        result.append(product)
        product *= confidence.chance(_class(length + len(result)))
    return result


def _class(length: int) -> int:
    return _CLASSES[min(length, LENGTHS[-1])]

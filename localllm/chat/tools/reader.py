"""Finds tool calls in streamed text; how they are written is the business of the syntaxes it is given.

Only a well-formed call of a declared tool is a call. Anything else that begins like one is given as text, with its
tags: Ollama loses such text, or takes the first object that follows for arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from localllm.chat.parts import Part, Text, joined, overlap
from localllm.chat.tools.declared import Tools
from localllm.chat.tools.syntax import Step, Syntax


class CallReader:
    """Tells calls from text. White space around calls is dropped; text before and after them streams.

    `begun` is text that the prompt ended with and that belongs to the syntax; it is never shown.
    """

    def __init__(self, syntaxes: Sequence[Syntax], tools: Tools, begun: str = "") -> None:
        self._syntaxes = syntaxes
        self._tools = tools
        openers = [opener for s in syntaxes if not s.is_only_first for opener in s.openers]
        self._openers = re.compile("|".join(map(re.escape, openers))) if openers else None
        self._held = begun
        self._n_begun = len(begun)
        self._n_fed = 0
        self._is_first = True
        self._group: Syntax | None = None  # the syntax of the call just read
        self._is_group_closed = False
        self._is_waiting = False  # for more than white space

    @property
    def n_held(self) -> int:
        """Characters of the answer that are undecided."""
        return min(len(self._held), self._n_fed)

    def feed(self, text: str) -> list[Part]:
        """Take more text; give text and calls that are certain by now, in order."""
        self._held += text
        self._n_fed += len(text)
        # White space alone completes no call, nor begins one: it is not looked at before something follows.
        return self._drain(is_end=False) if text and not (self._is_waiting and text.isspace()) else []

    def flush(self) -> list[Part]:
        """The answer ended: what was held back, as text unless it is a whole call."""
        return self._drain(is_end=True)

    def _drain(self, is_end: bool) -> list[Part]:
        parts: list[Part] = []
        self._is_waiting = False
        while self._held:
            found = self._after_call(is_end) if self._group else self._in_text(is_end)
            if found is None:
                break
            parts += found
        return joined(parts)

    def _in_text(self, is_end: bool) -> list[Part] | None:
        at, syntaxes = self._next_opener()
        if at is None:
            n = len(self._held) if is_end else self._n_certain()
            self._is_waiting = n == 0 and self._held.isspace()
            return [self._text(n)] if n else None
        n_shown = len(self._held[:at].rstrip())
        before: list[Part] = [self._text(n_shown)] if n_shown else []
        found = self._try(syntaxes, at - n_shown, is_end)
        return before + found if found is not None else before or None

    def _n_certain(self) -> int:
        """Length of the text without white space and the start of an opener at its end."""
        openers = [o for s in self._syntaxes if self._is_first or not s.is_only_first for o in s.openers]
        return len(self._held[: len(self._held) - overlap(self._held, openers)].rstrip())

    def _next_opener(self) -> tuple[int | None, list[Syntax]]:
        """Where the earliest opener is, and the syntaxes that have one there."""
        blank = len(self._held) - len(self._held.lstrip())
        if self._is_first and (here := [s for s in self._syntaxes if self._begins(s, blank)]):
            return blank, here
        match = self._openers.search(self._held) if self._openers else None
        if match is None:
            return None, []
        return match.start(), [s for s in self._syntaxes if not s.is_only_first and self._begins(s, match.start())]

    def _begins(self, syntax: Syntax, at: int) -> bool:
        return self._held.startswith(syntax.openers, at)

    def _try(self, syntaxes: list[Syntax], at: int, is_end: bool) -> list[Part] | None:
        """Read at `at`, before which there is only white space; None to wait. The first syntax that can is asked."""
        rejected = 1
        for syntax in syntaxes:
            step = syntax.read(self._held[at:], self._tools, is_end)
            if step is None:
                self._is_waiting = True
                return None
            if step.calls or step.is_dropped:
                return self._taken(syntax, at, step)
            rejected = max(rejected, step.n_chars)
        return [self._text(at + rejected)]

    def _taken(self, syntax: Syntax, at: int, step: Step) -> list[Part]:
        if step.calls:
            self._group, self._is_group_closed = syntax, False
            self._is_first = False
        self._drop(at + step.n_chars)
        return list(step.calls)

    def _after_call(self, is_end: bool) -> list[Part] | None:
        assert self._group is not None
        group = self._group
        self._drop(len(self._held) - len(self._held.lstrip()))
        if not self._held:
            return [] if is_end else None
        if not self._is_group_closed:
            step = group.read_next(self._held, self._tools, is_end)
            if step is None:
                return None
            if step.calls:
                self._drop(step.n_chars)
                return list(step.calls)
        return self._after_group(group, is_end)

    def _after_group(self, group: Syntax, is_end: bool) -> list[Part] | None:
        """No further call without an opener: a trailer, the next group, or text."""
        if trailer := max((t for t in group.trailers if self._held.startswith(t)), key=len, default=""):
            self._drop(len(trailer))
            self._is_group_closed |= trailer in group.closers
            return []
        if not is_end and any(tag.startswith(self._held) for tag in group.trailers):
            return None
        at, syntaxes = self._next_opener()
        if at == 0:
            found = self._try(syntaxes, 0, is_end)
            if found is None:
                return None
            if not found or not isinstance(found[0], Text):
                return found
            self._group = None
            return found
        if not is_end and any(o.startswith(self._held) for s in self._syntaxes for o in s.openers):
            return None
        self._group = None
        return []

    def _text(self, n: int) -> Text:
        text = self._held[self._n_begun : n]
        self._drop(n)
        self._is_first &= not text.strip()
        return Text(text)

    def _drop(self, n: int) -> None:
        self._held = self._held[n:]
        self._n_begun = max(0, self._n_begun - n)

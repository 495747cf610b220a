"""Thinking: what a template is told of it, and how it is told apart in an answer; it knows nothing of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localllm.chat.parts import overlap

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class ThinkingTags:
    """The texts around thinking. `wrappers` are around what comes after it, and not shown; `is_repeated`: thinking may
    come again after content. `mark` is in the templates of models that have them, where the other texts do not tell."""

    open: str = OPEN
    close: str = CLOSE
    wrappers: tuple[str, ...] = ()
    is_repeated: bool = False
    mark: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All of them."""
        return (self.open, self.close, *self.wrappers)


THINK = ThinkingTags()


def thinking_arguments(think: bool | str | None) -> dict[str, Any]:
    """The variables by which templates are told whether and how much to think; none for `think` of None."""
    if think is None:
        return {}
    level = {"reasoning_effort": think} if isinstance(think, str) else {}
    return {"enable_thinking": bool(think), "thinking": bool(think), **level}


class ThinkingSplitter:
    """Tells thinking between tags at the start of a streamed answer from the content after it.

    Tags may be cut anywhere between pieces. White space around the tags is dropped. `is_open` says that the prompt
    itself ended with an opening tag; one more at the start of the answer is dropped.
    """

    def __init__(self, is_open: bool = False, tags: ThinkingTags = THINK) -> None:
        self._tags = tags
        self._is_open = is_open
        self._state = "start"
        self._held = ""
        self._is_trimming = is_open

    @property
    def n_held(self) -> int:
        """Characters that are undecided."""
        return len(self._held)

    def feed(self, text: str) -> tuple[str, str]:
        """Take more of the answer; give (thinking, content) that can be told by now."""
        self._held += text
        if self._state == "start":
            self._decide()
        thinking = content = ""
        while self._state != "start":
            before = self._state
            if before == "thinking":
                thinking += self._take_thinking()
            else:
                content += self._take_content()
            if self._state == before:
                break
        return thinking, content

    def flush(self) -> tuple[str, str]:
        """The answer ended: (thinking, content) of what was held back."""
        held, self._held = self._held, ""
        is_thinking = self._state == "thinking" or (self._state == "start" and self._is_open)
        return (held, "") if is_thinking else ("", held)

    def _decide(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(self._tags.open):
            self._state, self._held, self._is_trimming = "thinking", begun[len(self._tags.open) :], True
        elif not self._tags.open.startswith(begun):
            self._state = "thinking" if self._is_open else "content"

    def _take_thinking(self) -> str:
        text = self._trimmed(self._held)
        if (at := text.find(self._tags.close)) >= 0:
            self._state, self._held, self._is_trimming = "content", text[at + len(self._tags.close) :], True
            return text[:at].rstrip()
        n_shown = len(text[: len(text) - overlap(text, [self._tags.close])].rstrip())
        self._held = text[n_shown:]
        return text[:n_shown]

    def _take_content(self) -> str:
        text, self._held = self._trimmed(self._held), ""
        if not self._tags.is_repeated:
            return text
        if (at := text.find(self._tags.open)) >= 0:
            self._state, self._held, self._is_trimming = "thinking", text[at + len(self._tags.open) :], True
            return text[:at].rstrip()
        n_shown = len(text[: len(text) - overlap(text, [self._tags.open])].rstrip())
        self._held = text[n_shown:]
        return text[:n_shown]

    def _trimmed(self, text: str) -> str:
        if self._is_trimming:
            text = text.lstrip()
            self._is_trimming = not text
        return text

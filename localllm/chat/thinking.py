"""Thinking: what a template is told of it, and how it is told apart in an answer; it knows nothing of tokens."""

from __future__ import annotations

from typing import Any

OPEN, CLOSE = "<think>", "</think>"
DEFAULT_LEVEL = "medium"


def thinking_arguments(think: bool | str | None) -> dict[str, Any]:
    """The variables by which templates are told whether and how much to think; none for `think` of None."""
    if think is None:
        return {}
    level = {"reasoning_effort": think} if isinstance(think, str) else {}
    return {"enable_thinking": bool(think), "thinking": bool(think), **level}


class ThinkingSplitter:
    """Tells `<think>…</think>` at the start of a streamed answer from the content after it.

    Tags may be cut anywhere between pieces. White space around the tags is dropped. `is_open` says
    that the prompt itself ended with an opening tag.
    """

    def __init__(self, is_open: bool = False) -> None:
        self._state = "thinking" if is_open else "start"
        self._held = ""
        self._is_trimming = is_open

    def feed(self, text: str) -> tuple[str, str]:
        """Take more of the answer; give (thinking, content) that can be told by now."""
        self._held += text
        thinking = content = ""
        if self._state == "start":
            self._decide()
        if self._state == "thinking":
            thinking = self._take_thinking()
        if self._state == "content":
            content, self._held = self._trimmed(self._held), ""
        return thinking, content

    def flush(self) -> tuple[str, str]:
        """The answer ended: (thinking, content) of what was held back."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "thinking" else ("", held)

    def _decide(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(OPEN):
            self._state, self._held, self._is_trimming = "thinking", begun[len(OPEN) :], True
        elif not OPEN.startswith(begun):
            self._state = "content"

    def _take_thinking(self) -> str:
        text = self._trimmed(self._held)
        if (at := text.find(CLOSE)) >= 0:
            self._state, self._held, self._is_trimming = "content", text[at + len(CLOSE) :], True
            return text[:at].rstrip()
        n_shown = len(text) - _n_undecided(text)
        self._held = text[n_shown:]
        return text[:n_shown]

    def _trimmed(self, text: str) -> str:
        if self._is_trimming:
            text = text.lstrip()
            self._is_trimming = not text
        return text


def _n_undecided(text: str) -> int:
    """Length of an end that may be white space before the closing tag, with the start of that tag."""
    n_tag = next((n for n in range(min(len(text), len(CLOSE) - 1), 0, -1) if text.endswith(CLOSE[:n])), 0)
    return len(text) - len(text[: len(text) - n_tag].rstrip())

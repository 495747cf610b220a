"""What an answer is made of, and what takes it apart; it knows no syntax and no tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Text:
    """Content to show."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """The model's thinking."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A whole call. Arguments keep the model's order; `id` is the model's own, None where its syntax has none."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str | None = None


Part = Text | Thinking | ToolCall


class Reader(Protocol):
    """Takes an answer apart while it comes; where it was cut into pieces makes no difference to the result."""

    @property
    def n_held(self) -> int:
        """Characters fed last about which nothing has been decided yet."""
        ...

    def feed(self, text: str) -> list[Part]:
        """Take more of the answer; give what is certain by now."""
        ...

    def flush(self) -> list[Part]:
        """The answer ended: what was held back."""
        ...


def overlap(text: str, tags: Iterable[str]) -> int:
    """Length of the longest end of `text` that is a proper start of one of `tags`."""
    return max((_overlap(text, tag) for tag in tags), default=0)


def _overlap(text: str, tag: str) -> int:
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


def joined(parts: Iterable[Part]) -> list[Part]:
    """Neighbours of one kind as one part, without empty ones."""
    result: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCall):
            result.append(part)
        elif part.text:
            last = result[-1] if result else None
            if isinstance(last, Text) and isinstance(part, Text):
                result[-1] = Text(last.text + part.text)
            elif isinstance(last, Thinking) and isinstance(part, Thinking):
                result[-1] = Thinking(last.text + part.text)
            else:
                result.append(part)
    return result


class Eraser:
    """Takes the texts of control tokens out of a stream: structure that a parser did not take is not to be shown."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = [tag for tag in tags if tag]
        self._held = ""

    @property
    def n_held(self) -> int:
        """Characters that may begin such a text."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Take more text; give what remains of it."""
        text = self._held + text
        for tag in self._tags:
            text = text.replace(tag, "")
        n = len(text) - overlap(text, self._tags)
        self._held = text[n:]
        return text[:n]

    def flush(self) -> str:
        """The text ended."""
        held, self._held = self._held, ""
        return held

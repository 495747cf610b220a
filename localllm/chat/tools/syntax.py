"""What a way of writing tool calls must be able to do; how calls are found in a stream is not its business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from localllm.chat.parts import ToolCall
from localllm.chat.tools.declared import Tools


@dataclass(frozen=True)
class Step:
    """The first `n_chars` characters are decided: they are `calls`; if there are none, they are text to show, or
    structure without meaning (`is_dropped`)."""

    n_chars: int
    calls: tuple[ToolCall, ...] = ()
    is_dropped: bool = False


class Syntax(Protocol):
    """One way of writing calls.

    `openers` begin a call or a group of calls. `trailers` are dropped after a call; those that are `closers` end its
    group. `is_only_first`: calls are only recognised where the answer has no text before. `tags` are all texts that
    may be tokens of their own.
    """

    @property
    def openers(self) -> tuple[str, ...]: ...

    @property
    def trailers(self) -> tuple[str, ...]: ...

    @property
    def closers(self) -> tuple[str, ...]: ...

    @property
    def is_only_first(self) -> bool: ...

    @property
    def tags(self) -> tuple[str, ...]: ...

    def read(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        """Look at text that begins with an opener. None: more text is needed, which may not be said at the end.

        The answer must not depend on how much text follows what it is about.
        """
        ...

    def read_next(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        """Look at text inside a group, right after a call. A step without calls means that the group has ended."""
        ...


@dataclass(frozen=True)
class Dropped:
    """Texts of an answer that only say what comes next."""

    openers: tuple[str, ...]
    trailers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    is_only_first: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        return self.openers

    def read(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        return Step(max(len(o) for o in self.openers if text.startswith(o)), is_dropped=True)

    def read_next(self, text: str, tools: Tools, is_end: bool) -> Step | None:
        return Step(0)

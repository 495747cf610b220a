"""Takes an answer apart: thinking first, then tool calls out of what remains; it knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Iterable

from localllm.chat.parts import Eraser, Part, Text, Thinking, joined
from localllm.chat.thinking import ThinkingSplitter
from localllm.chat.tools.reader import CallReader


class AnswerReader:
    """Gives thinking, text and calls in order. The texts in `hidden` are shown neither in text nor in thinking."""

    def __init__(
        self,
        splitter: ThinkingSplitter | None = None,
        calls: CallReader | None = None,
        hidden: Iterable[str] = (),
    ) -> None:
        self._splitter = splitter
        self._calls = calls
        hidden = tuple(hidden)
        self._in_thinking, self._in_text = Eraser(hidden), Eraser(hidden)

    @property
    def n_held(self) -> int:
        """Characters that are undecided."""
        readers = (self._splitter, self._calls, self._in_thinking, self._in_text)
        return sum(reader.n_held for reader in readers if reader)

    def feed(self, text: str) -> list[Part]:
        """Take more of the answer; give what is certain by now."""
        thinking, content = self._splitter.feed(text) if self._splitter else ("", text)
        return joined([*self._thought(thinking, content), *self._said(content)])

    def flush(self) -> list[Part]:
        """The answer ended: what was held back."""
        thinking, content = self._splitter.flush() if self._splitter else ("", "")
        parts = [*self._thought(thinking, "end"), *self._said(content)]
        parts += self._erased(self._calls.flush()) if self._calls else []
        return joined([*parts, Text(self._in_text.flush())])

    def _thought(self, thinking: str, content: str) -> list[Part]:
        """Thinking; once content follows, with what was held of it."""
        shown = self._in_thinking.feed(thinking)
        return [Thinking(shown + (self._in_thinking.flush() if content else ""))]

    def _said(self, content: str) -> list[Part]:
        return self._erased(self._calls.feed(content) if self._calls else [Text(content)])

    def _erased(self, parts: list[Part]) -> list[Part]:
        result: list[Part] = []
        for part in parts:
            if isinstance(part, Text):
                result.append(Text(self._in_text.feed(part.text)))
            else:
                result += [Text(self._in_text.flush()), part]
        return result

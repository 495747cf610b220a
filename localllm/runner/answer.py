"""From sampled tokens to the parts of an answer that are shown; it knows nothing of logits, batches or the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from localllm.chat import AnswerReader, Part, Reader, ToolCall
from localllm.sampling import StopMatcher
from localllm.tokenizer import StreamDecoder, Tokenizer

LogprobEntry = dict[str, Any]


@dataclass(frozen=True)
class Shown:
    """What can be shown after a token. `logprobs` belong to the text that has been decided by now."""

    parts: list[Part] = field(default_factory=list)
    logprobs: list[LogprobEntry] = field(default_factory=list)
    is_stopped: bool = False

    def __bool__(self) -> bool:
        return bool(self.parts or self.logprobs)


class Answer:
    """Tokens in; out come texts whole in their characters, thinking and tool calls, up to a stop string, or up to the
    first call where there `is_single_call`.

    Log-probability entries travel with their text, or with the call that it became: `token` is the text that the token
    completed, so that the entries' texts joined are the model's text, cut where a stop string cut it; `bytes` are
    always the token's own. Control tokens have no text, except those in `visible`, which the reader wants to see.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Iterable[str],
        reader: Reader | None = None,
        visible: frozenset[int] = frozenset(),
        is_single_call: bool = False,
    ) -> None:
        self._decoder = StreamDecoder(_Pieces(tokenizer, visible))
        self._stop = StopMatcher(stops)
        self._reader: Reader = reader or AnswerReader()
        self._is_single_call = is_single_call
        self._is_over = False
        self._waiting: deque[LogprobEntry] = deque()
        self._n_surplus = 0  # characters of the first waiting entry that were shown already

    @property
    def stop(self) -> str | None:
        """The stop string that was met."""
        return self._stop.matched

    def feed(self, token: int, entry: LogprobEntry | None = None) -> Shown:
        """Take a token, and its log-probability entry, whose `token` is filled in here."""
        text = self._decoder.feed(token)
        if entry is not None:
            self._waiting.append({**entry, "token": text})
        return self._shown(*self._stop.feed(text))

    def flush(self) -> Shown:
        """The answer ended: what was held back; the bytes of an unfinished character are dropped."""
        if self._is_over:
            return Shown()
        shown = self._shown(self._stop.flush(), is_stopped=False)
        parts = shown.parts if shown.is_stopped else self._within_limit([*shown.parts, *self._reader.flush()])
        entries = [*shown.logprobs, *self._waiting]
        self._waiting.clear()
        return Shown(parts, entries)

    def _shown(self, decided: str, is_stopped: bool) -> Shown:
        n_held = self._reader.n_held
        parts = self._reader.feed(decided)
        if is_stopped:
            parts += self._reader.flush()
        entries = self._entries_for(len(decided) + n_held - (0 if is_stopped else self._reader.n_held))
        if is_stopped:
            entries += self._cut_entry()
        parts = self._within_limit(parts)
        self._is_over |= is_stopped
        return Shown(parts, entries, self._is_over)

    def _within_limit(self, parts: list[Part]) -> list[Part]:
        """Up to the first call, where that ends the answer."""
        first = next((i for i, part in enumerate(parts) if isinstance(part, ToolCall)), None)
        if first is None or not self._is_single_call:
            return parts
        self._is_over = True
        return parts[: first + 1]

    def _entries_for(self, n_chars: int) -> list[LogprobEntry]:
        """The waiting entries whose text lies within the next `n_chars` characters; tokens of an unfinished
        character wait for the one that completes it."""
        self._n_surplus += n_chars
        ready: list[LogprobEntry] = []
        n_complete = 0
        for entry in self._waiting:
            if len(entry["token"]) > self._n_surplus:
                break
            ready.append(entry)
            if entry["token"] or not entry["bytes"]:
                self._n_surplus -= len(entry["token"])
                n_complete = len(ready)
        for _ in range(n_complete):
            self._waiting.popleft()
        return ready[:n_complete]

    def _cut_entry(self) -> list[LogprobEntry]:
        """The entry inside whose text the stop string begins, cut there; the rest belongs to the stop string."""
        entry = next((e for e in self._waiting if e["token"]), None)
        cut = [{**entry, "token": entry["token"][: self._n_surplus]}] if entry and self._n_surplus else []
        self._waiting.clear()
        return cut


class _Pieces:
    """A tokenizer that shows some control tokens."""

    def __init__(self, tokenizer: Tokenizer, visible: frozenset[int]) -> None:
        self._tokenizer, self._visible = tokenizer, visible

    def piece(self, token: int, special: bool = False) -> bytes:
        return self._tokenizer.piece(token, special or token in self._visible)

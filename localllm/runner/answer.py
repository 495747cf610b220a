"""From sampled tokens to the text that is shown; it knows nothing of logits, batches or the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from localllm.chat import ThinkingSplitter
from localllm.sampling import StopMatcher
from localllm.tokenizer import StreamDecoder, Tokenizer

LogprobEntry = dict[str, Any]


@dataclass(frozen=True)
class Shown:
    """What can be shown after a token. `logprobs` belong to the text that has been decided by now."""

    text: str = ""
    thinking: str = ""
    logprobs: list[LogprobEntry] = field(default_factory=list)
    is_stopped: bool = False

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.logprobs)


class Answer:
    """Tokens in; text out that is whole in its characters, ends before a stop string, and is told from thinking.

    Log-probability entries travel with their text: `token` is the text that the token completed, so that the
    entries' texts joined are the text, cut where a stop string cut it; `bytes` are always the token's own.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str], splitter: ThinkingSplitter | None) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._stop = StopMatcher(stops)
        self._splitter = splitter
        self._waiting: deque[LogprobEntry] = deque()
        self._n_surplus = 0  # characters of the first waiting entry that were shown already

    def feed(self, token: int, entry: LogprobEntry | None = None) -> Shown:
        """Take a token, and its log-probability entry, whose `token` is filled in here."""
        text = self._decoder.feed(token)
        if entry is not None:
            self._waiting.append({**entry, "token": text})
        decided, is_stopped = self._stop.feed(text)
        return self._shown(decided, is_stopped)

    def flush(self) -> Shown:
        """The answer ended: what was held back for a stop string; the bytes of an unfinished character are dropped."""
        shown = self._shown(self._stop.flush(), is_stopped=False)
        thinking, text = self._splitter.flush() if self._splitter else ("", "")
        entries = [*shown.logprobs, *self._waiting]
        self._waiting.clear()
        return Shown(shown.text + text, shown.thinking + thinking, entries)

    def _shown(self, decided: str, is_stopped: bool) -> Shown:
        entries = self._entries_for(len(decided))
        if is_stopped:
            entries += self._cut_entry()
        thinking, text = self._splitter.feed(decided) if self._splitter else ("", decided)
        return Shown(text, thinking, entries, is_stopped)

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

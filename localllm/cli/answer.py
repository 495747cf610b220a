"""Prints an answer as it arrives, its thinking apart, and its timings; it knows nothing of requests."""

import sys
import textwrap
from collections.abc import Iterator
from typing import Any, TextIO

from localllm.cli.terminal import terminal_columns
from localllm.cli.wrap import WordWrap
from localllm.durations import format_go_duration

GREY, PLAIN = "\x1b[90m", "\x1b[0m"
LABEL_WIDTH = 22
# A model must not be able to steer the terminal: of the control characters only line feed and tab pass.
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)])
for _kept in "\n\t":
    del _CONTROLS[ord(_kept)]


class AnswerPrinter:
    """Writes the pieces of one answer to `out`; `text` and `thinking` are what has arrived.

    On a terminal, thinking is grey, rows are wrapped at words (`wrap`) and control characters are left out;
    anywhere else the text passes unchanged.
    """

    def __init__(self, out: TextIO, *, wrap: bool, hide_thinking: bool) -> None:
        self.text = ""
        self.thinking = ""
        self._out = out
        self._hide_thinking = hide_thinking
        self._is_terminal = out.isatty()
        self._is_thinking = False
        self._wrap = WordWrap(out.write, lambda: terminal_columns(out)) if wrap and self._is_terminal else None

    def feed(self, thinking: str, text: str) -> None:
        """Takes the next piece of thinking and of text; either may be empty."""
        self.thinking += thinking
        if thinking and not self._hide_thinking:
            if not self._is_thinking:
                self._begin_thinking()
            self._put(thinking)
        if text:
            self._end_thinking()
            if not self.text and (self.thinking and not self._hide_thinking):
                text = text.lstrip("\n")
            self.text += text
            self._put(text)
        self._out.flush()

    def finish(self) -> None:
        """Writes what was kept back and ends the last row; on a terminal, an empty row follows."""
        self._end_thinking()
        self._flush_word()
        if self.text and (self._is_terminal or not self.text.endswith("\n")):
            self._out.write("\n")
        if self.text and self._is_terminal:
            self._out.write("\n")
        self._out.flush()

    def _begin_thinking(self) -> None:
        self._is_thinking = True
        self._out.write(f"{GREY}Thinking...\n" if self._is_terminal else "Thinking...\n")

    def _end_thinking(self) -> None:
        if not self._is_thinking:
            return
        self._is_thinking = False
        self._put("" if self.thinking.endswith("\n") else "\n")
        self._flush_word()
        self._out.write(f"...done thinking.\n{PLAIN}\n" if self._is_terminal else "...done thinking.\n\n")

    def _put(self, text: str) -> None:
        if self._is_terminal:
            text = text.translate(_CONTROLS)
        if self._wrap:
            self._wrap.feed(text)
        else:
            self._out.write(text)

    def _flush_word(self) -> None:
        if self._wrap:
            self._wrap.flush()


def print_answer(chunks: Iterator[dict[str, Any]], printer: AnswerPrinter) -> dict[str, Any]:
    """Prints chunks of /api/generate or /api/chat; returns the last one.

    The printer is finished in any case. Raises: whatever `chunks` raises, KeyboardInterrupt too.
    """
    chunk: dict[str, Any] = {}
    try:
        for chunk in chunks:
            message = chunk.get("message") or {}
            thinking = chunk.get("thinking") or message.get("thinking") or ""
            printer.feed(thinking, chunk.get("response") or message.get("content") or "")
    finally:
        printer.finish()
    return chunk


def notes_on_losses(last_chunk: dict[str, Any]) -> list[str]:
    """What is to be said of what the model did not read (parts of the chat, of the prompt, of what came before), and of
    a context shorter than was asked for."""
    lost = last_chunk.get("truncated") or {}
    n_messages, n_tokens, n_shifted = (lost.get(name) or 0 for name in ("messages", "tokens", "shifted"))
    notes = []
    if n_ctx := last_chunk.get("context_length"):
        notes.append(f"the context has {n_ctx} tokens, the model was trained for no more")
    if n_messages:
        what, were = (f"{n_messages} oldest messages", "were") if n_messages > 1 else ("oldest message", "was")
        notes.append(f"the chat has outgrown the context: its {what} ({n_tokens} tokens) {were} left out")
    elif n_tokens:
        notes.append(f"the prompt is longer than the context: {n_tokens} tokens of it were left out")
    if n_shifted:
        notes.append(f"the answer has outgrown the context: {n_shifted} tokens before it were dropped on the way")
    return notes


def print_notes(notes: list[str], hint: str = "") -> None:
    """Lines on standard error, grey on a terminal, and perhaps one that says what to do; without notes, nothing."""
    if not notes:
        return
    lines = [*(f"note: {note}" for note in notes), *([f"hint: {hint}"] if hint else [])]
    if not sys.stderr.isatty():
        print("\n".join(lines), file=sys.stderr)
        return
    wrapped = "\n".join(textwrap.fill(line, terminal_columns(sys.stderr)) for line in lines)
    print(f"{GREY}{wrapped}{PLAIN}\n", file=sys.stderr)


def print_timings(last_chunk: dict[str, Any], out: TextIO | None = None) -> None:
    """The statistics of an answer, one a line, on standard error; what the server did not measure is left out."""
    for label, value in _timings(last_chunk):
        print(f"{label + ':':<{LABEL_WIDTH}}{value}", file=out or sys.stderr)


def _timings(last_chunk: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for stage in ("total", "load"):
        duration_ns = last_chunk.get(f"{stage}_duration") or 0
        if duration_ns:
            yield f"{stage} duration", format_go_duration(duration_ns)
    for stage in ("prompt_eval", "eval"):
        count, duration_ns = last_chunk.get(f"{stage}_count") or 0, last_chunk.get(f"{stage}_duration") or 0
        n_cached = last_chunk.get(f"{stage}_cached_count") or 0
        label = stage.replace("_", " ")
        if count:
            yield f"{label} count", f"{count} token(s)"
        if n_cached:
            yield f"{label} cached", f"{n_cached} token(s)"
        if duration_ns:
            yield f"{label} duration", format_go_duration(duration_ns)
            yield f"{label} rate", f"{(count - n_cached) / (duration_ns / 1e9):.2f} tokens/s"
    if n_drafted := last_chunk.get("draft_count") or 0:
        yield "draft count", f"{n_drafted} token(s), {last_chunk.get('draft_accepted_count') or 0} accepted"

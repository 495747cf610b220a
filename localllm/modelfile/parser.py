"""Reads a Modelfile into its instructions, by Ollama's rules; it knows nothing of what they do.

    file        = *( blank | line end | comment | instruction )
    comment     = "#" up to the line end; only where an instruction could start
    instruction = keyword blank value
                | "PARAMETER" blank name blank value
                | "MESSAGE" blank role blank value
    value       = text up to the first line end at which it, without blanks around it, is complete:
                  text that does not start with a quote, or in "…", or in \"""…\"""

- Keywords in any case, names of parameters and roles as they are. "\\r" and "\\n" are a line end each.
- There are no escapes: quotes inside of a value are text, so `"a "b" c"` is `a "b" c`.
- Characters that do not print, but blanks, tabs and line ends inside of quotes, are dropped (encoding.py).

A comment `# localllm:exactly JSON` in front of an instruction holds a value that this syntax cannot write, or fields
of a message beside its text (writer.py). It counts as long as the value that follows is the one written for it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from localllm.errors import ModelfileError
from localllm.modelfile.encoding import BLANKS, LINE_ENDS, keep_printable
from localllm.modelfile.quoting import nearest_value, opening_quote

KEYWORDS = (
    *("from", "license", "template", "system", "adapter", "draft"),
    *("renderer", "parser", "parameter", "message", "requires"),
)
ROLES = ("system", "user", "assistant")
EXACTLY = "# localllm:exactly "

_WORD = {"": re.compile(r"[A-Za-z]*"), "parameter": re.compile(r"[A-Za-z0-9_]*"), "message": re.compile(r"[A-Za-z]*")}
_UNKNOWN_KEYWORD = "command must be one of {}, or {}".format(
    ", ".join(f'"{keyword}"' for keyword in KEYWORDS[:-1]), f'"{KEYWORDS[-1]}"'
)
_UNKNOWN_ROLE = 'message role must be one of "system", "user", or "assistant"'
_UNEXPECTED_END = "unexpected EOF"


@dataclass(frozen=True)
class Instruction:
    """`name` is the keyword in lower case, `key` the parameter or the role; `more` are a message's further fields.

    `line` is where it stands, counted from 1 as editors do.
    """

    name: str
    value: str
    key: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    line: int = field(default=0, compare=False)


def parse(text: str) -> list[Instruction]:
    """The instructions of a Modelfile, in order; the time it takes is linear in the text.

    Raises:
        ModelfileError: in Ollama's words, with the line; `no FROM line` for a file without one.
    """
    instructions = list(_Reader(text).instructions())
    if not any(instruction.name == "from" for instruction in instructions):
        raise ModelfileError("no FROM line", hint="FROM names a model, a GGUF file, or a folder")
    return instructions


class _Reader:
    """A cursor over the text. `line` counts line ends as Ollama does, "\\r\\n" twice."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._n_line_ends = 0
        self._n_pairs = 0

    @property
    def _line(self) -> int:
        return self._n_line_ends + 1

    @property
    def _editor_line(self) -> int:
        return self._line - self._n_pairs

    def instructions(self) -> Iterator[Instruction]:
        exact = ""
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in LINE_ENDS:
                self._step_over_line_end()
            elif character in BLANKS:
                self._at += 1
            elif character == "#":
                comment = self._rest_of_line()
                exact = comment if comment.startswith(EXACTLY) else exact
            else:
                yield _restored(self._instruction(), exact)
                exact = ""

    def _instruction(self) -> Instruction:
        line = self._editor_line
        name = self._keyword()
        key = self._key(name) if name in ("parameter", "message") else ""
        return Instruction(name, self._value(), key, line=line)

    def _keyword(self) -> str:
        # As in Ollama, a character that does not print is no part of the word that it begins.
        first = keep_printable(self._text[self._at])
        self._at += 1
        word = first + self._word("")
        if self._is_at_end():
            raise self._fail(_UNEXPECTED_END, word)
        if not self._is_at_blank():
            after_line_end = self._text[self._at] in LINE_ENDS
            raise self._fail(_UNKNOWN_KEYWORD, word, self._line + after_line_end)
        if word.lower() not in KEYWORDS:
            raise self._fail(_UNKNOWN_KEYWORD, word, self._line)
        self._at += 1
        return word.lower()

    def _key(self, name: str) -> str:
        while self._is_at_blank():
            self._at += 1
        word = self._word(name)
        if self._is_at_end():
            raise self._fail(_UNEXPECTED_END)
        if not self._is_at_blank():
            raise self._fail(f"{_UNEXPECTED_END}: {word}")
        if name == "message" and word not in ROLES:
            raise self._fail(_UNKNOWN_ROLE, line=self._line, hint=_near(word, ROLES, str.lower))
        self._at += 1
        return word

    def _value(self) -> str:
        """The value that begins here; ends at a line end, which it leaves, or at the end of the file."""
        first = keep_printable(self._rest_of_line()).lstrip(BLANKS)
        quote = opening_quote(first)
        opened_at = self._editor_line
        parts = [first]
        is_closed = not quote or _ends_with(first[len(quote) :], quote)
        while not is_closed:
            if self._is_at_end():
                raise self._fail(_UNEXPECTED_END, hint=f"the text that {quote} opens in line {opened_at} has no end")
            parts += [self._line_ends(), keep_printable(self._rest_of_line())]
            is_closed = _ends_with(parts[-1], quote)
        text = "".join(parts).rstrip(BLANKS)
        return text[len(quote) : len(text) - len(quote)]

    def _line_ends(self) -> str:
        """The line end here, and those that follow at once."""
        start = self._at
        while not self._is_at_end() and self._text[self._at] in LINE_ENDS:
            self._step_over_line_end()
        return self._text[start : self._at]

    def _step_over_line_end(self) -> None:
        self._n_line_ends += 1
        self._n_pairs += self._text[self._at] == "\n" and self._at > 0 and self._text[self._at - 1] == "\r"
        self._at += 1

    def _rest_of_line(self) -> str:
        match = _TO_LINE_END.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return match[0]

    def _word(self, name: str) -> str:
        match = _WORD[name].match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return match[0]

    def _is_at_end(self) -> bool:
        return self._at >= len(self._text)

    def _is_at_blank(self) -> bool:
        return not self._is_at_end() and self._text[self._at] in BLANKS

    def _fail(self, text: str, keyword: str = "", line: int = 0, hint: str | None = None) -> ModelfileError:
        shown = f"(line {line}): {text}" if line else text
        told = hint or _near(keyword, KEYWORDS, str.upper)
        # The line that editors show, where the message has none, or another one.
        place = "" if line == self._editor_line else f"in line {self._editor_line}"
        return ModelfileError(shown, line=self._editor_line, hint=": ".join(filter(None, (place, told))) or None)


_TO_LINE_END = re.compile(r"[^\r\n]*")


def _ends_with(line: str, quote: str) -> bool:
    return line.rstrip(BLANKS).endswith(quote)


def _near(word: str, known: tuple[str, ...], spelled: Any) -> str | None:
    matches = difflib.get_close_matches(word.lower()[:80], known, n=1)
    return f"did you mean {spelled(matches[0])}?" if matches else None


def _restored(instruction: Instruction, comment: str) -> Instruction:
    """The instruction with the value that a comment says it has, where that was written for what stands here."""
    if not comment:
        return instruction
    try:
        exact = json.loads(comment.removeprefix(EXACTLY))
    except (ValueError, RecursionError):
        return instruction
    more = dict(exact) if isinstance(exact, dict) and instruction.name == "message" else {}
    value = more.pop("content", None) if more else exact
    if not isinstance(value, str) or nearest_value(value) != instruction.value:
        return instruction
    return Instruction(instruction.name, value, instruction.key, more, instruction.line)

"""The text of a grammar and the errors that point into it; it knows no syntax."""

from __future__ import annotations

import re

from localllm.grammar.errors import GrammarError

_LINE_END = re.compile(r"\r\n|\r|\n")
N_SHOWN = 80  # characters of a line


class Source:
    """A grammar's text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, from 1."""
        line, begin = 1, 0
        for end in _LINE_END.finditer(self.text, 0, offset):
            line, begin = line + 1, end.end()
        return line, offset - begin + 1

    def pointed(self, message: str, offset: int) -> str:
        """A message with the place, the line there and a caret below the character."""
        line, column = self.place(offset)
        begin = offset - column + 1
        end = _LINE_END.search(self.text, offset)
        shown = self.text[begin : end.start() if end else len(self.text)]
        clipped = max(0, column - 1 - N_SHOWN // 2)
        shown = shown[clipped : clipped + N_SHOWN]
        indent = "".join("\t" if c == "\t" else " " for c in shown[: column - 1 - clipped])
        return f"line {line}, column {column}: {message}\n{shown}\n{indent}^"

    def error(self, message: str, offset: int, *, hint: str | None = None) -> GrammarError:
        """An error at a character."""
        line, column = self.place(offset)
        error = GrammarError(self.pointed(message, offset), line=line, column=column)
        error.hint = hint
        return error

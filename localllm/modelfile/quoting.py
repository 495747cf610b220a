"""How a value is quoted in a Modelfile, and which values cannot be; it knows no instruction.

Ollama's syntax has no escapes. It cannot write characters that do not print (they are dropped), nor a text that has
triple quotes at the end of a line and goes on after it. `nearest_value` is what it can write instead.
"""

from __future__ import annotations

import re

from localllm.modelfile.encoding import BLANKS, LINE_ENDS, keep_printable

SINGLE, TRIPLE = '"', '"""'

_TRIPLE_AT_LINE_END = re.compile(r'"""(?=[ \t]*[\r\n])')


def opening_quote(text: str) -> str:
    """The quotes that a value begins with: triple ones, a single one, or none ("")."""
    return next((quote for quote in (TRIPLE, SINGLE) if text.startswith(quote)), "")


def quoted(value: str) -> str:
    """The value as it stands in a Modelfile; of one that cannot be written, the nearest that can.

    Bare where it spans no lines, has no blanks at its edges and starts with no quote; else in quotes, in triple ones if
    it holds a quote itself.
    """
    value = nearest_value(value)
    if value and value.strip(BLANKS) == value and not value.startswith(SINGLE) and not _spans_lines(value):
        return value
    quote = TRIPLE if SINGLE in value else SINGLE
    return f"{quote}{value}{quote}"


def nearest_value(value: str) -> str:
    """The value where it can be written; else without what does not print, and with ''' for \""" at line ends."""
    return _TRIPLE_AT_LINE_END.sub("'''", keep_printable(value))


def _spans_lines(value: str) -> bool:
    return any(end in value for end in LINE_ENDS)

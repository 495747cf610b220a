"""A pattern for the texts of regular expressions that are valid in ECMA-262 beyond doubt.

Whether groups close is no regular question, so that they are nested to a depth; nor is whether bounds are in order, so
that of `{n,m}` and ranges of characters those are left out whose order is not seen at once.
"""

from __future__ import annotations

MAX_DEPTH = 3

_HEX = "[0-9A-Fa-f]"
_ESCAPE = f"\\\\(?:[dDwWsStnrfv^$.*+?()\\[\\]{{}}|/\\\\]|x{_HEX}{{2}}|u{_HEX}{{4}}|c[A-Za-z])"
_CHARACTER = f"(?:[^\\\\^$.*+?()\\[\\]{{}}|]|{_ESCAPE})"

# Ranges whose bounds are in order: of digits, of letters, of all printable ASCII, and of escapes of those and beyond.
_DIGITS = "|".join(f"{n}-[{n}-9]" for n in range(10))
_LETTERS = "a-[a-z]|[a-m]-[m-z]|[a-z]-z|A-[A-Za-z]|[A-M]-[M-Z]|[A-Z]-Z"
_RANGE = f"(?:{_DIGITS}|{_LETTERS}|[ !]-~|\\\\x[01]{_HEX}-\\\\x[2-9A-Fa-f]{_HEX}|[ !]-\\\\x7[Ee])"
_ITEM = f"(?:{_RANGE}(?:-[_.])?|[^\\\\\\[\\]^&~-]|{_ESCAPE}|\\\\-)"
_BRACKETS = f"\\[\\^?(?:-?{_ITEM}+-?)?\\]"

_ORDERED = "|".join(f"{n},[{n}-9]" for n in range(10))
_BOUNDS = f"(?:{_ORDERED}|[0-9],[1-9][0-9]{{1,2}}|[1-9][0-9],[1-9][0-9]{{2}}|[0-9]{{1,3}},?)"
_QUANTIFIER = f"(?:(?:[*+?]|\\{{{_BOUNDS}\\}})\\??)?"
_ATOM = f"(?:{_CHARACTER}|\\.|{_BRACKETS}){_QUANTIFIER}|[$^]|\\\\[bB]"


_FLAT = f"(?:{_ATOM}|\\|)*"
# What looks around has no quantifier, and here no groups.
_LOOK = f"\\(\\?<?[=!]{_FLAT}\\)"


def _of_depth(depth: int) -> str:
    if depth == 0:
        return _FLAT
    return f"(?:{_ATOM}|\\||\\((?:\\?:)?{_of_depth(depth - 1)}\\){_QUANTIFIER})*"


PATTERN_TEXT = f"(?:{_LOOK}|{_of_depth(MAX_DEPTH)})*"
